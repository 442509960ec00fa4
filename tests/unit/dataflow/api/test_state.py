"""State descriptors: what they refuse, what they leave in a snapshot."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest

from snapline.dataflow.api.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RunningAggregateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
    descriptor_of,
    register_serializer,
    serializer_named,
)
from snapline.dataflow.errors import StateError

DESCRIPTORS: list[StateDescriptor] = [
    ValueStateDescriptor("value", pa.int64()),
    ValueStateDescriptor("json", serializer="json"),
    ValueStateDescriptor("row", pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    ListStateDescriptor("list", pa.string()),
    ListStateDescriptor("objects", serializer="json"),
    MapStateDescriptor("map", pa.string(), pa.decimal128(9, 2)),
    MapStateDescriptor("map of objects", pa.int64(), serializer="json"),
    ReducingStateDescriptor("reducing", max, pa.float64()),
    AggregatingStateDescriptor("aggregating", None, pa.struct([("n", pa.int64())])),
    RunningAggregateDescriptor("running", pa.int32(), ("sum", "max")),
    RunningAggregateDescriptor("floats", pa.float32(), ("min",)),
]


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda descriptor: descriptor.name)
def test_a_field_says_all_that_is_needed(descriptor: StateDescriptor) -> None:
    """Kind, types and serializer survive the snapshot and the pickle to the task; functions travel with the job."""
    field = descriptor.to_field()
    read = descriptor_of(pa.ipc.read_schema(pa.schema([field]).serialize()).field(0))

    assert (read.kind, read.name, read.storage_type, read.serializer) == (
        descriptor.kind,
        descriptor.name,
        descriptor.storage_type,
        descriptor.serializer,
    )
    assert pickle.loads(pickle.dumps(descriptor)) == descriptor


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda: ValueStateDescriptor("v"),
            "state 'v': say its value_type as an Arrow type or schema, or name a serializer",
        ),
        (lambda: ValueStateDescriptor("v", pa.int64(), "json"), "one of them"),
        (lambda: ValueStateDescriptor("v", int), "<class 'int'> is no Arrow type"),
        (lambda: ValueStateDescriptor("v", pa.null()), "of type null cannot hold anything"),
        (lambda: ValueStateDescriptor("", pa.int64()), "a state needs a name"),
        (lambda: ValueStateDescriptor(5, pa.int64()), "a state's name is text in UTF-8, got 5"),  # type: ignore[arg-type]
        (lambda: RunningAggregateDescriptor("a\ud800", pa.int64()), r"a state's name is text in UTF-8, got 'a\\ud800'"),
        (lambda: MapStateDescriptor("m", None, pa.int64()), "map state 'm' needs an Arrow type for its keys"),
        (lambda: MapStateDescriptor("m", pa.list_(pa.int64()), pa.int64()), "map state 'm': a value of type list"),
        (lambda: ReducingStateDescriptor("r", "sum", pa.int64()), "'sum' is not a function of two values"),  # type: ignore[arg-type]
        (lambda: RunningAggregateDescriptor("a", pa.int64(), ("median",)), "unknown 'median', one of sum, min, max"),
        (lambda: RunningAggregateDescriptor("a", pa.string()), "string is no integer or float; cast the column"),
    ],
)
def test_refusals_name_the_state(declare: Callable[[], StateDescriptor], message: str) -> None:
    """A wrong declaration fails where it is written, with the way out."""
    with pytest.raises(StateError, match=message):
        declare()


def test_a_state_of_an_unknown_kind() -> None:
    """A snapshot from a later version may have kinds that we do not know."""
    with pytest.raises(StateError, match="state 'x' is of the kind 'tree', which this version does not know"):
        descriptor_of(pa.field("x", pa.int64(), metadata={b"snapline.state.kind": b"tree"}))


def test_serializers_by_name() -> None:
    """Registered ones are found, others are named together with what there is."""
    register_serializer("utf-16", lambda text: text.encode("utf-16"), lambda data: data.decode("utf-16"))

    assert serializer_named("utf-16").loads(serializer_named("utf-16").dumps("ä")) == "ä"
    assert serializer_named("json").dumps({"b": 1, "a": "ä"}) == '{"a":"ä","b":1}'.encode()
    with pytest.raises(StateError, match="no serializer 'pickle' is registered here"):
        serializer_named("pickle")
    with pytest.raises(StateError, match="needs a name"):
        register_serializer("", repr, repr)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="needs a name, a text, and got 3"):
        register_serializer(3, str.encode, bytes.decode)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="serializer 'odd': loads is a function of one value, got None"):
        register_serializer("odd", str.encode, None)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="serializer 'json' is one of Snapline's own"):
        register_serializer("json", str.encode, bytes.decode)


def test_an_aggregate_function_without_merge_says_so() -> None:
    """Only merging windows need it."""

    class Count(AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: object, accumulator: int) -> int:
            return accumulator + 1

        def get_result(self, accumulator: int) -> int:
            return accumulator

    with pytest.raises(StateError, match="Count has no merge"):
        Count().merge(1, 2)


def test_a_dictionary_type_is_stored_plain() -> None:
    """Dictionaries differ from batch to batch; state holds values."""
    assert ValueStateDescriptor("v", pa.dictionary(pa.int32(), pa.string())).storage_type == pa.string()
