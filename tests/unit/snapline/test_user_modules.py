"""Modules that no executor could import travel with the job; installed ones do not."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import cloudpickle
import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import DiscardingSink
from snapline.dataflow.api import state
from snapline.taskmanager.operators.factory import create_operator, load_spec
from snapline.user_modules import modules_beside_script, pickled_by_value
from tests.unit.taskmanager.operators.harness import Harness

PROGRAM = """
import sys
sys.path.insert(0, {root!r})
import json, numpy, beside, pkg.inner
from snapline.user_modules import modules_beside_script
print(*sorted(module.__name__ for module in modules_beside_script()))
"""


def test_only_modules_below_the_script_that_are_not_installed(tmp_path):
    """The script itself, the standard library, site-packages and Snapline are left out."""
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "inner.py").write_text("")
    (tmp_path / "job.py").write_text(PROGRAM.format(root=str(Path(__file__).parents[3])))
    done = subprocess.run(
        [sys.executable, tmp_path / "job.py"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "beside pkg pkg.inner\n", done.stderr
    assert modules_beside_script() == []  # pytest is installed


def test_code_that_protoc_generated_is_imported_where_it_is_needed(tmp_path):
    """Its descriptors cannot be pickled: a function that uses a message travels by value, and the message's class by
    name."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "note.proto").write_text('syntax = "proto3"; package notes; message Note { string text = 1; }')
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "pkg/note.proto"]
    subprocess.run(protoc, cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "pkg" / "beside.py").write_text(
        "from pkg.note_pb2 import Note\ndef text():\n    return Note(text='mine').text\n"
    )
    program = PROGRAM.replace("json, numpy, beside, pkg.inner", "cloudpickle, pkg.beside") + (
        "from snapline.user_modules import pickled_by_value\n"
        "with pickled_by_value(modules_beside_script()):\n    payload = cloudpickle.dumps(pkg.beside.text)\n"
        "del sys.modules['pkg.beside']\nprint(cloudpickle.loads(payload)())\n"
    )
    (tmp_path / "job.py").write_text(program.format(root=str(Path(__file__).parents[3])))
    done = subprocess.run(
        [sys.executable, tmp_path / "job.py"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ("pkg.beside\nmine\n", "") == (done.stdout, done.stderr)


def test_what_was_registered_before_stays(monkeypatch):
    """And what was not is not afterwards."""
    mine, theirs = ModuleType("a_module_of_mine"), ModuleType("a_module_of_theirs")
    for module in (mine, theirs):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("def answer():\n    return 42", mine.__dict__)
    cloudpickle.register_pickle_by_value(theirs)
    try:
        with pickled_by_value([mine, theirs]):
            payload = cloudpickle.dumps(mine.answer)
        assert cloudpickle.list_registry_pickle_by_value() == {"a_module_of_theirs"}
    finally:
        cloudpickle.unregister_pickle_by_value(theirs)
    monkeypatch.delitem(sys.modules, "a_module_of_mine")
    assert cloudpickle.loads(payload)() == 42


class Amount:
    """What Arrow has no type for."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


class Sum(sl.KeyedProcessFunction):
    """Keeps an amount, by a serializer of its own."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.amount = context.get_state(sl.ValueStateDescriptor("amount", serializer="an amount"))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[sl.Row]:
        known = self.amount.value()
        self.amount.update(Amount(row["cents"] if known is None else known.cents + row["cents"]))
        yield {"shop": row["shop"], "cents": self.amount.value().cents}


def payload_of_sum() -> bytes:
    """What tasks get of the operator that keeps amounts."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection([{"shop": "a", "cents": 5}])
    rows.key_by("shop").process(Sum(), uid="sum").sink_to(DiscardingSink(), uid="sink")
    return env.translate("job").job_graph.vertices[1].operators[0].payload


def task_of(payload: bytes) -> Harness:
    """A task in a process that has registered nothing."""
    state._SERIALIZERS.pop("an amount", None)
    return Harness(create_operator(load_spec(payload, "sum"), lambda: pytest.fail("no push source here"))).start()


@pytest.fixture
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which no serializers but Snapline's are known, until the test registers some."""
    own = {name: one for name, one in state._SERIALIZERS.items() if state._is_own(one.dumps)}
    monkeypatch.setattr(state, "_SERIALIZERS", own)
    monkeypatch.setattr(state, "_SENT", {})


@pytest.mark.usefixtures("_nothing_registered")
def test_serializers_of_the_program_travel_with_the_job() -> None:
    """No task in another process knew them: neither the script nor modules beside it are imported there."""
    sl.register_serializer("an amount", lambda one: str(one.cents).encode(), lambda data: Amount(int(data)))
    lock = threading.Lock()
    sl.register_serializer("of this process", lambda one: str(lock and one).encode(), bytes.decode)

    task = task_of(payload_of_sum())
    batch = pa.record_batch({"shop": ["a"], "cents": [5]})
    assert task.process(batch).process(batch).rows() == [{"shop": "a", "cents": 5}, {"shop": "a", "cents": 10}]


@pytest.mark.usefixtures("_nothing_registered")
def test_two_jobs_in_one_process_have_serializers_of_one_name() -> None:
    """The state of a task is written and read by those of its own job, also once another job has come."""
    sl.register_serializer("an amount", lambda one: str(one.cents).encode(), lambda data: Amount(int(data)))
    first = payload_of_sum()
    sl.register_serializer("an amount", lambda one: f"{one.cents} ct".encode(), lambda data: Amount(int(data[:-3])))
    second = payload_of_sum()

    batch = pa.record_batch({"shop": ["a"], "cents": [5]})
    earlier = task_of(first).process(batch)
    assert task_of(second).process(batch).process(batch).rows()[-1] == {"shop": "a", "cents": 10}
    assert earlier.process(batch).rows()[-1] == {"shop": "a", "cents": 10}


@pytest.mark.usefixtures("_nothing_registered")
def test_a_job_without_serializers_of_its_own_is_what_older_task_managers_can_load() -> None:
    """In a rolling upgrade all new jobs failed there, because a function of the newer release was asked for."""
    assert b"_with_serializers" not in payload_of_sum()


@pytest.mark.usefixtures("_nothing_registered")
def test_a_serializer_that_cannot_be_loaded_is_asked_for_by_who_uses_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library beside the driver registers one when it is imported: tasks without the library failed, although their
    job does not use it."""
    library = ModuleType("a_library_of_the_driver")
    exec("def dumps(value): return b''\ndef loads(data): return data", library.__dict__)
    monkeypatch.setitem(sys.modules, library.__name__, library)
    sl.register_serializer("a library's", library.dumps, library.loads)
    sl.register_serializer("an amount", lambda one: str(one.cents).encode(), lambda data: Amount(int(data)))
    payload = payload_of_sum()
    state._SERIALIZERS.pop("a library's")
    monkeypatch.delitem(sys.modules, library.__name__)

    batch = pa.record_batch({"shop": ["a"], "cents": [5]})
    assert task_of(payload).process(batch).rows() == [{"shop": "a", "cents": 5}]
    with pytest.raises(ModuleNotFoundError, match="a_library_of_the_driver"):
        state.serializer_named("a library's")


def test_two_threads_may_send_modules_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that was done took the module from the other one, whose job then named what no executor could
    import."""
    module = ModuleType("a_module_beside_the_script")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("def answer():\n    return 42", module.__dict__)
    first, second = pickled_by_value([module]), pickled_by_value([module])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    payload = cloudpickle.dumps(module.answer)
    second.__exit__(None, None, None)
    assert module.__name__ not in cloudpickle.list_registry_pickle_by_value()
    monkeypatch.delitem(sys.modules, module.__name__)
    assert cloudpickle.loads(payload)() == 42


def test_requirements_of_a_job_are_no_modules_beside_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script in the home directory has the cache below it, in which they are installed: whole libraries were sent by
    value, and most of them cannot be."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "job.py"), raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    library = tmp_path / "a_library-1.0-py3-none-any.whl"
    info = "a_library-1.0.dist-info"
    with zipfile.ZipFile(library, "w") as archive:
        archive.writestr("a_library.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: a-library\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "a_library.py,,\n")
    (tmp_path / "requirements.txt").write_text(f"--no-index\n{library}\n")
    sl.StreamExecutionEnvironment.get_execution_environment().add_requirements(tmp_path / "requirements.txt")
    monkeypatch.setitem(sys.modules, "a_library", importlib.import_module("a_library"))
    assert Path(str(sys.modules["a_library"].__file__)).is_relative_to(tmp_path)
    assert "a_library" not in {module.__name__ for module in modules_beside_script()}
