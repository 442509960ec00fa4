"""How many fields a message has is counted without parsing it."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.wire import field_counts
from snapline.dataflow.wire.field_counts import has_more_fields, refuse_many_fields
from snapline.protos import cluster_pb2, job_pb2, metadata_pb2


def fields_of(message: Message) -> int:
    """What the parser has found, with one field more for each eight bytes of numbers in a row."""
    count = 0
    for field, value in message.ListFields():
        values: Any = value if field.is_repeated else [value]
        if field.message_type is not None:
            count += sum(1 + fields_of(one) for one in values)
        elif field.is_repeated and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            count += 1 + (len(value) >> 3)  # those below 128 have one byte each
        else:
            count += len(values)
    return count


GRAPHS = st.builds(
    job_pb2.JobGraph,
    job_id=st.text(),
    master_hooks=st.lists(st.binary(max_size=200)),
    vertices=st.lists(
        st.builds(
            job_pb2.JobVertex,
            parallelism=st.integers(0, 2**31 - 1),
            operators=st.lists(st.builds(job_pb2.OperatorNode, uid=st.text(), chained_input=st.integers(-1, 9))),
        )
    ),
)
METADATA = st.builds(
    metadata_pb2.OperatorMetadata,
    uid=st.text(max_size=300),
    finished_subtasks=st.lists(st.integers(1, 127)),
    subtasks=st.lists(st.builds(metadata_pb2.SubtaskMetadata, subtask_index=st.integers(0, 2**31 - 1))),
)


@given(GRAPHS | METADATA)
def test_all_fields_count_and_no_more(message: Message) -> None:
    """Those of messages within messages, too; what a text holds is none."""
    data, count = message.SerializeToString(), fields_of(message)
    assert not has_more_fields(data, type(message), count)
    assert count == 0 or has_more_fields(data, type(message), count - 1)


@given(st.binary(max_size=100))
def test_what_is_no_message_has_an_end(data: bytes) -> None:
    """Whatever it is, it is counted or left to the parser."""
    has_more_fields(data, cluster_pb2.Envelope, 1 << 20)


@pytest.mark.parametrize("begin", [b"", b"\x08", b"\x0a"], ids=["tag", "number", "length"])
def test_a_number_without_an_end_is_left_to_the_parser(begin: bytes) -> None:
    """It was put together bit by bit, which took hours for one of megabytes, and nobody else was heard meanwhile."""
    data = begin + b"\xff" * (32 << 20)
    assert not has_more_fields(data, cluster_pb2.Envelope, 1 << 20)
    with pytest.raises(DecodeError):
        cluster_pb2.Envelope.FromString(data)


def test_large_messages_are_refused_for_their_fields_and_not_for_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of megabytes passes; a small message passes without a look."""
    monkeypatch.setattr(field_counts, "MAX_FIELDS", 1000)
    many = cluster_pb2.Envelope(messages=[{}] * 1001).SerializeToString()
    refuse_many_fields(many, cluster_pb2.Envelope)
    refuse_many_fields(job_pb2.JobGraph(master_hooks=[b"x" * (2 << 20)]).SerializeToString(), job_pb2.JobGraph)
    monkeypatch.setattr(field_counts, "SMALL_BYTES", 1000)
    with pytest.raises(DecodeError, match="Envelope has more than 1000 fields, and that is the most"):
        refuse_many_fields(many, cluster_pb2.Envelope)
