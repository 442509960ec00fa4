"""`execute(local=True)`: the same rows in this process, on the caller's thread, with the exception of the user's
function."""

from __future__ import annotations

import asyncio
import bdb
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from snapline import JobDefinitionError, JobFailed, ParquetSink, StreamExecutionEnvironment
from snapline.client import RequestRefused
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.coordinator.jobmaster.operations import CancelJob
from snapline.local.local_execution import LOCAL_VARIABLE, open_local_job
from snapline.runtime.storage.storage_port import StorageError

ROWS = [{"k": i % 3, "v": i} for i in range(30)]


def environment(tmp_path, **settings):
    """Where checkpoints do not lie about."""
    return StreamExecutionEnvironment.get_execution_environment(
        {"execution.checkpointing.dir": str(tmp_path / "checkpoints"), **settings}
    )


def written(tmp_path):
    """Rows of the sink."""
    return pq.read_table(tmp_path / "out").to_pylist()


def run(tmp_path, function, threads=1, **settings):
    """Apply a function to the rows and write them."""
    env = environment(tmp_path, **settings)
    env.from_collection(ROWS).map(function).sink_to(ParquetSink(str(tmp_path / "out")), uid="out")
    return env.execute("job", local=True, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_a_small_job(tmp_path, threads):
    """What comes in goes through the function to the sink."""
    result = run(tmp_path, lambda row: {"w": row["v"] * 2}, threads)
    assert (result.status, result.rows_read) == ("FINISHED", 30)
    assert written(tmp_path) == [{"w": 2 * i} for i in range(30)]


def test_the_function_runs_on_the_thread_that_called(tmp_path):
    """Breakpoints and profilers find it there."""
    run(tmp_path, lambda row: {"thread": threading.get_ident()})
    assert {row["thread"] for row in written(tmp_path)} == {threading.get_ident()}


def test_what_was_executed_is_not_run_again_with_what_was_added_since(tmp_path):
    """A notebook that built a second stream wrote the rows of the first one once more."""
    env = environment(tmp_path)
    rows = env.from_collection(ROWS)
    rows.sink_to(ParquetSink(str(tmp_path / "out")), uid="out")
    env.execute("first", local=True)
    rows.map(dict).sink_to(ParquetSink(str(tmp_path / "more")), uid="more")
    env.execute_async("second", local=True).wait()
    assert written(tmp_path) == pq.read_table(tmp_path / "more").to_pylist() == ROWS
    env.execute("all of it, since nothing was added", local=True)
    assert len(written(tmp_path)) == 2 * len(ROWS)
    env.from_collection(ROWS).sink_to(DiscardingSink(), uid="nowhere")  # under a uid that is there already
    assert env.execute("fourth", local=True).rows_read == 30


def test_what_could_not_start_is_executed_with_what_was_added_since(tmp_path):
    """Nothing of it has run."""
    env = environment(tmp_path)
    env.from_collection(ROWS).sink_to(ParquetSink(str(tmp_path / "out")), uid="out")
    with pytest.raises(JobDefinitionError, match="threads=0"):
        env.execute("first", local=True, threads=0)
    env.from_collection(ROWS, uid="others").sink_to(DiscardingSink(), uid="nowhere")
    assert env.execute("both", local=True).rows_read == 60
    assert written(tmp_path) == ROWS


def divide(row):
    """Fails at 7."""
    return {"x": 1 / (row["v"] - 7)}


@pytest.mark.parametrize("threads", [1, 2])
def test_the_exception_of_the_function_is_the_cause(tmp_path, threads):
    """With its traceback, for debuggers; and the failure as a cluster tells it."""
    with pytest.raises(JobFailed, match="ZeroDivisionError") as caught:
        run(tmp_path, divide, threads)
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "divide"
    assert caught.value.failure is not None
    assert "row 7 of the batch" in caught.value.failure.position


class FailsOnce:
    """Fails at the tenth row, unless a file says that it has."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __call__(self, row):
        """Pass it on."""
        if row["v"] == 10 and not Path(self.marker).exists():
            Path(self.marker).touch()
            raise ValueError("once")
        return row


def test_a_failed_job_restarts_from_its_checkpoint(tmp_path):
    """With checkpoints on, as on a cluster; no row is written twice."""
    result = run(tmp_path, FailsOnce(tmp_path / "marker"), **{"execution.checkpointing.interval": "20 ms"})
    assert (result.status, result.restarts) == ("FINISHED", 1)
    assert written(tmp_path) == ROWS


def test_checkpoints_that_can_be_written_nowhere_are_refused_at_the_start(tmp_path):
    """A file in the place of the directory: the job ran, failed at its first checkpoint, and restarted for ever."""
    (tmp_path / "in-the-way").touch()
    settings = {
        "execution.checkpointing.interval": "20 ms",
        "execution.checkpointing.dir": str(tmp_path / "in-the-way"),
    }
    with pytest.raises(StorageError, match="in-the-way is a file; choose another directory"):
        run(tmp_path, dict, **settings)
    assert not list((tmp_path / "out").rglob("*.parquet"))
    del settings["execution.checkpointing.interval"]
    assert run(tmp_path, dict, **settings).status == "FINISHED"  # nobody writes there


def interrupt(row):
    """Ctrl-C comes while a row is being processed."""
    if row["v"] == 3:
        signal.raise_signal(signal.SIGINT)
    return row


def test_ctrl_c_cancels_the_job(tmp_path):
    """It reaches the function at once, and nothing is published; signals are as they were."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark, started by another test, has its own
    try:
        with pytest.raises(KeyboardInterrupt, match="job 'job' was cancelled"):
            run(tmp_path, interrupt, **{"execution.checkpointing.interval": "1 min"})
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert list((tmp_path / "out").glob("*.parquet")) == []


def test_ctrl_c_cancels_a_job_that_a_coroutine_waits_for(tmp_path: Path) -> None:
    """Asyncio has a handler of its own, which let the job run on: it cancels what does not come to its next await."""

    async def main() -> None:
        run(tmp_path, interrupt, **{"execution.checkpointing.interval": "1 min"})

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match="job 'job' was cancelled"):
            asyncio.run(main())
    finally:
        signal.signal(signal.SIGINT, before)
    assert list((tmp_path / "out").glob("*.parquet")) == []


def leave_debugger(row):
    """What `q` at a breakpoint raises."""
    raise bdb.BdbQuit


def test_leaving_a_debugger_cancels_the_job(tmp_path):
    """Nobody wants to meet the breakpoint again after a restart."""
    with pytest.raises(KeyboardInterrupt, match="was cancelled"):
        run(tmp_path, leave_debugger, **{"execution.checkpointing.interval": "1 min"})


def test_a_job_that_is_left_is_gone(tmp_path):
    """Closed in the middle of its life, it leaves neither threads nor files in the directory of checkpoints."""
    env = environment(tmp_path, **{"execution.checkpointing.interval": "10 min"})
    env.from_collection(ROWS).sink_to(ParquetSink(str(tmp_path / "out")), uid="out")
    with open_local_job(env, "left", 2) as job:
        job.run(until=lambda: job.details().overview.subtasks_by_state.get("RUNNING", 0) > 0)
    assert [thread for thread in threading.enumerate() if "Collection" in thread.name] == []


def test_threads_are_for_local_runs(tmp_path):
    """And there is at least one; whichever way the job is run, they are not left aside without a word."""
    env = environment(tmp_path)
    stream = env.from_collection(ROWS)
    stream.sink_to(ParquetSink(str(tmp_path / "out")), uid="out")
    with pytest.raises(JobDefinitionError, match="at least 1, got threads=0"):
        env.execute("job", local=True, threads=0)
    for begin in (
        env.execute,
        env.execute_async,
        stream.execute_and_collect,
        lambda name, **how: stream.to_dataframe(None, name, **how),
    ):
        with pytest.raises(JobDefinitionError, match="give local=True"):
            begin("job", local=False, threads=2)


SCRIPT = """
import sys
from snapline import StreamExecutionEnvironment
from snapline.connectors.builtin.sinks import PrintSink
env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([{"x": 1}, {"x": 2}]).map(lambda row: {"y": row["x"] * 10}).sink_to(PrintSink())
env.execute("job")
print([name for name in ("grpc", "pyspark", "rich", "structlog", "numba", "kazoo", "obstore") if name in sys.modules])
"""


def test_a_script_runs_locally_without_what_it_does_not_need(tmp_path):
    """`SNAPLINE_LOCAL`, which `snapline run --local` sets; neither Spark nor sockets nor compilers are loaded."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={**_environment(), LOCAL_VARIABLE: "1"}
    )
    assert (ended.stdout, ended.returncode) == ("{'y': 10}\n{'y': 20}\n[]\n", 0), ended.stderr


def test_a_variable_that_is_no_number_is_named(tmp_path):
    """`SNAPLINE_LOCAL=true` is a guess that many make."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={**_environment(), LOCAL_VARIABLE: "true"}
    )
    assert ended.stderr.splitlines()[-1].endswith("SNAPLINE_LOCAL is the number of threads of a local run, got 'true'")


def test_the_command_runs_a_script_locally(tmp_path):
    """`snapline run --local job.py`; what belongs to a coordinator is refused."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT.rpartition("print")[0])
    command = [sys.executable, "-m", "snapline.cli", "run", "--local"]
    ended = subprocess.run([*command, str(script)], capture_output=True, text=True, env=_environment())
    assert (ended.stdout, ended.returncode) == ("{'y': 10}\n{'y': 20}\n", 0), ended.stderr
    refused = subprocess.run([*command, "-d", str(script)], capture_output=True, text=True, env=_environment())
    assert refused.returncode != 0
    assert "--detached: a local run ends with its process" in refused.stderr


def _environment():
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}


def test_a_program_that_waits_for_no_job_hears_that_it_ends_with_it(tmp_path: Path) -> None:
    """A script whose last line started a job was over at once, with exit code 0 and nothing done."""
    script = tmp_path / "job.py"
    script.write_text(
        "import snapline as sl\n"
        "from snapline.connectors import DiscardingSink\n"
        "env = sl.StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_source(sl.GeneratorSource(keys=1, rows_per_second=1), uid='endless').sink_to(DiscardingSink())\n"
        "for name in ('cancelled', 'left'):\n"
        "    job = env.execute_async(name, local=True)\n"
        "    if name == 'cancelled':\n"
        "        job.cancel()\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=_environment())
    assert ended.returncode == 0
    said = [line for line in ended.stderr.splitlines() if "ends here, unfinished" in line]
    assert [line.partition(" (")[0] for line in said] == ["snapline: job 'left'"]


def test_a_row_that_fails_every_time_ends_the_job(tmp_path, capsys):
    """With checkpoints it restarted for ever, and said nothing."""
    with pytest.raises(JobFailed, match="the same row has failed the same way 3 times"):
        run(tmp_path, divide, **{"execution.checkpointing.interval": "1 min"})
    said = capsys.readouterr().err
    assert said.count("division by zero, at source, batch 1 (rows 0 to 29 of this attempt), row 7 of the batch") >= 1
    assert said.count("in divide") == 1


def in_a_circle(row):
    """Raises what is the cause of its own cause."""
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


@pytest.mark.parametrize("threads", [1, 2])
def test_causes_in_a_circle_end_the_job(tmp_path, threads):
    """Who looked for the end of the chain never found it, and the job hung."""
    with pytest.raises(JobFailed, match="ValueError: one") as caught:
        run(tmp_path, in_a_circle, threads)
    assert str(caught.value.__cause__) == "one"


def test_a_job_that_cannot_run_here_says_why(tmp_path):
    """Its external tasks come to a coordinator, and there is none."""
    env = environment(tmp_path)
    env.from_collection(ROWS, uid="rows").to_external("ledger", uid="ledger")
    with pytest.raises(
        JobFailed, match=r"external task 'ledger' cannot run here: .*start one with `snapline coordinator`"
    ):
        env.execute("outside", local=True)


def test_who_asks_a_job_that_has_ended_does_not_take_the_answer_of_another_one(tmp_path: Path) -> None:
    """Its loop is driven by whoever waits for an answer: two at a time took each other's turns, and one of them, which
    may be the one that waits for the end of the job, an IndexError."""
    env = environment(tmp_path)
    env.from_collection(ROWS).sink_to(DiscardingSink(), uid="nowhere")
    ended, came, refusals = threading.Event(), threading.Event(), []
    job = open_local_job(env, "job", 1)
    job.__enter__()
    job.run_in_background(ended.set)
    ended.wait()
    job._thread.join()  # type: ignore[union-attr]

    class Driving:
        """The lock of who drives the loop, which says that somebody wants it."""

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __enter__(self) -> None:
            came.set()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    def ask() -> None:
        try:
            job.operate(CancelJob())
        except RequestRefused as refusal:
            refusals.append(str(refusal))
        finally:
            came.set()

    def another_one_asks() -> None:
        came.clear()
        other.start()
        came.wait()

    other = threading.Thread(target=ask)
    job._driving = Driving()  # type: ignore[assignment]
    job._loop.call_soon(another_one_asks)
    ask()
    other.join()
    job.close()
    assert refusals == ["job 'job' is FINISHED"] * 2
