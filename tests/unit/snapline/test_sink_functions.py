"""A user's own sink function at the end of a stream."""

from __future__ import annotations

from typing import Any

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
