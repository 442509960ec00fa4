"""Modules that no executor could import travel with the job; installed ones do not."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
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
    from pathlib import Path

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
    from pathlib import Path

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


def test_serializers_of_the_program_travel_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """No task in another process knew them: neither the script nor modules beside it are imported there."""
    monkeypatch.setattr(state, "_SERIALIZERS", dict(state._SERIALIZERS))
    sl.register_serializer("an amount", lambda one: str(one.cents).encode(), lambda data: Amount(int(data)))
    lock = threading.Lock()
    sl.register_serializer("of this process", lambda one: str(lock and one).encode(), bytes.decode)
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection([{"shop": "a", "cents": 5}])
    rows.key_by("shop").process(Sum(), uid="sum").sink_to(DiscardingSink(), uid="sink")
    payload = env.translate("job").job_graph.vertices[1].operators[0].payload
    del state._SERIALIZERS["an amount"]

    task = Harness(create_operator(load_spec(payload, "sum"), lambda: pytest.fail("no push source here"))).start()
    batch = pa.record_batch({"shop": ["a"], "cents": [5]})
    assert task.process(batch).process(batch).rows() == [{"shop": "a", "cents": 5}, {"shop": "a", "cents": 10}]
