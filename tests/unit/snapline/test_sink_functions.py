"""A user's own sink function at the end of a stream."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

import snapline as sl
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.dataflow.graph.operator_specs import SinkFunctionSpec


class Plain(sl.SinkFunction):
    def invoke(self, value: Any) -> None: ...


class Transactional(sl.TwoPhaseCommitSinkFunction):
    def begin_transaction(self) -> int:
        return 1

    def invoke_transaction(self, transaction: int, value: Any) -> None: ...

    def pre_commit(self, transaction: int) -> None: ...

    def commit(self, transaction: int) -> None: ...

    def abort(self, transaction: int) -> None: ...


def test_a_sink_function_ends_a_stream() -> None:
    """One with transactions keeps state and commits; a plain one does neither."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_source(GeneratorSource(rows=10))
    stream.add_sink(Plain(), row_wise=True, uid="plain")
    stream.add_sink(Transactional()).uid("bank").name("bank")
    plain, bank = env.graph.nodes[1:]

    assert isinstance(plain.spec, SinkFunctionSpec)
    assert plain.spec.row_wise
    assert [(n.uid, n.name, n.stateful, n.commits) for n in (plain, bank)] == [
        ("plain", "Plain", False, False),
        ("bank", "bank", True, True),
    ]


class Files(sl.TwoPhaseCommitSinkFunction):
    """Has a constructor of its own, and forgets the one that it takes the place of."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def begin_transaction(self) -> str:
        return uuid.uuid4().hex

    def invoke_transaction(self, transaction: str, value: pa.RecordBatch) -> None:
        with (self.directory / f"{transaction}.staged").open("a") as staged:
            staged.write("".join(f"{number}\n" for number in value["n"].to_pylist()))

    def pre_commit(self, transaction: str) -> None: ...

    def commit(self, transaction: str) -> None:
        staged = self.directory / f"{transaction}.staged"
        if staged.exists():
            staged.rename(staged.with_suffix(".rows"))

    def abort(self, transaction: str) -> None:
        (self.directory / f"{transaction}.staged").unlink(missing_ok=True)


def test_a_constructor_that_forgets_the_one_of_its_base_does_no_harm(tmp_path: Path) -> None:
    """The job restarted for ever, because the function had no '_pending'."""
    settings = {"execution.checkpointing.interval": "20 ms", "restart-strategy.type": "none"}
    env = sl.StreamExecutionEnvironment.get_execution_environment(settings)
    env.from_collection([{"n": n} for n in range(5)], uid="numbers").add_sink(Files(tmp_path), uid="files")
    assert env.execute("files", local=True).status == "FINISHED"
    assert "".join(file.read_text() for file in tmp_path.glob("*.rows")).split() == ["0", "1", "2", "3", "4"]
    assert not list(tmp_path.glob("*.staged"))
