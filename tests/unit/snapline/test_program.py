"""A job script run only for the job that it would execute."""

from __future__ import annotations

import sys
import threading

import pytest

from snapline import StreamExecutionEnvironment
from snapline.dataflow.errors import JobDefinitionError
from snapline.execution import ProgramAborted, translating_only
from snapline.program import translate_script
from snapline.reporting import ScriptFailed, print_error

SCRIPT = """
import sys
from pathlib import Path
from snapline import StreamExecutionEnvironment
from snapline.connectors.builtin.sinks import DiscardingSink

env = StreamExecutionEnvironment.get_execution_environment()
rows = [{"n": int(text)} for text in sys.argv[1:]]
env.from_collection(rows).sink_to(DiscardingSink(), uid="sink")
try:
    env.execute("from a script")
except Exception:
    pass
Path(__file__).with_suffix(".ran").touch()
"""


@pytest.fixture(autouse=True)
def program_state(monkeypatch):
    """Running a script changes these."""
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_execute_hands_the_translation_over_and_ends_the_script(tmp_path):
    """Also a script that catches every Exception: what comes after relies on a job that ran."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)

    translation = translate_script(script, ["1", "2"])

    assert translation.job_graph.name == "from a script"
    assert [operator.uid for vertex in translation.job_graph.vertices for operator in vertex.operators] == [
        "collection",
        "sink",
    ]
    assert not script.with_suffix(".ran").exists()


def test_what_a_script_prints_is_no_part_of_the_answer(tmp_path, capsys):
    """`snapline plan -o json` gave what no program can read: the lines of the script stood before the answer."""
    script = tmp_path / "job.py"
    script.write_text(f"print('reads the rows')\n{SCRIPT}")

    translate_script(script, ["1"])

    said = capsys.readouterr()
    assert (said.out, "reads the rows\n" in said.err) == ("", True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "does not call execute"),
        ("import sys\nsys.exit(3)\n", "ended with exit code 3 before it called execute"),
        ("import sys\nsys.exit()\n", "ended before it called execute"),
    ],
)
def test_a_script_that_executes_nothing_is_named(tmp_path, text, message):
    """One line, with the script in it."""
    script = tmp_path / "job.py"
    script.write_text(text)

    with pytest.raises(JobDefinitionError, match=message) as raised:
        translate_script(script, [])

    assert str(script) in str(raised.value)


def test_what_is_wrong_with_the_job_is_said_as_always(tmp_path):
    """Errors of the job's definition pass through."""
    script = tmp_path / "job.py"
    script.write_text(
        "from snapline import StreamExecutionEnvironment\n"
        "StreamExecutionEnvironment.get_execution_environment().execute('empty')\n"
    )

    with pytest.raises(JobDefinitionError, match="has no operators"):
        translate_script(script, [])


@pytest.mark.parametrize(
    ("text", "said", "lines"),
    [
        ("def f():\n    return {}['x']\n\nf()\n", "failed: KeyError: 'x'", ["line 4, in <module>", "line 2, in f"]),
        ("x = (\n", "failed: SyntaxError: '(' was never closed", ["line 1"]),
    ],
)
def test_an_error_of_the_script_comes_with_its_own_frames_only(tmp_path, capsys, text, said, lines):
    """One line of ours, then the traceback as Python prints it for a script that runs by itself."""
    script = tmp_path / "job.py"
    script.write_text(text)

    with pytest.raises(ScriptFailed) as raised:
        translate_script(script, [])

    print_error(raised.value)
    first, *traceback = capsys.readouterr().err.splitlines()
    assert first.startswith(f"snapline: {script} {said}")
    assert lines == [line.partition(", ")[2] for line in traceback if line.startswith("  File ")]


ON_A_THREAD = """
import threading
from pathlib import Path
from snapline import StreamExecutionEnvironment
from snapline.connectors.builtin.sinks import DiscardingSink

def run():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([{"n": 1}]).sink_to(DiscardingSink(), uid="sink")
    env.execute("from a thread", local=True)
    Path(__file__).with_suffix(".ran").touch()

thread = threading.Thread(target=run)
thread.start()
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # SystemExit ends a thread silently
@pytest.mark.parametrize("end", ["thread.join()\n", ""])
def test_a_job_that_a_thread_of_the_script_executes_is_translated_only(tmp_path, end):
    """Whether the script waits for its thread or not."""
    script = tmp_path / "job.py"
    script.write_text(ON_A_THREAD + end)

    translation = translate_script(script, [])

    assert translation.job_graph.name == "from a thread"
    assert not script.with_suffix(".ran").exists()


def test_a_thread_that_outlives_the_translation_starts_nothing():
    """What a script has left behind may call execute when the plan is made already."""
    go_on = threading.Event()
    raised: list[BaseException] = []
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.from_collection([{"n": 1}])

    def run() -> None:
        go_on.wait()
        try:
            environment.execute("late", local=True)
        except BaseException as error:
            raised.append(error)

    late = threading.Thread(target=run)
    with translating_only() as translations:
        late.start()
    go_on.set()
    late.join()

    assert [SystemExit] == [type(error) for error in raised]
    assert translations == []


def test_afterwards_execute_executes_again():
    """The interception ends with its block, and with an error in it."""
    with pytest.raises(ZeroDivisionError), translating_only():
        raise ZeroDivisionError
    environment = StreamExecutionEnvironment.get_execution_environment({"jobmanager.rpc.address": "127.0.0.1:1"})
    environment.from_collection([{"n": 1}])

    with pytest.raises(Exception, match="no coordinator answers") as raised:
        environment.execute("for real")

    assert not isinstance(raised.value, ProgramAborted)


@pytest.mark.parametrize("raised", ["BaseException", "GeneratorExit", "asyncio.CancelledError"])
def test_what_is_no_error_of_python_fails_the_script_as_well(tmp_path, raised):
    """Else the user reads our frames, and whatever the text does to a terminal."""
    script = tmp_path / "job.py"
    script.write_text(f"import asyncio\nraise {raised}('not \\x1b[31mmine')\n")

    with pytest.raises(ScriptFailed, match=r"job\.py failed: "):
        translate_script(script, [])
