"""Every message reads back as it was written, and what nobody writes is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from snapline.dataflow.elements import (
    AlignmentType,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    ControlElement,
    EndOfChannelState,
    EndOfData,
    EndOfPartition,
    EventAnnouncement,
    SnapshotType,
    Watermark,
    WatermarkStatus,
)
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog, ElementFrame
from snapline.taskmanager.network.flight import frames

BATCH = pa.record_batch({"n": [1, 2, 3], "s": ["a", None, "c"]})
BARRIERS = [
    CheckpointBarrier(CheckpointID(2**40), 1_700_000_000_000, CheckpointOptions(kind, alignment, timeout, "a/ü"))
    for kind in SnapshotType
    for alignment in AlignmentType
    for timeout in (-1, 0, 30_000)
]


@pytest.mark.parametrize(
    "element",
    [
        Watermark(-(2**63)),
        Watermark(2**63 - 1),
        WatermarkStatus.ACTIVE,
        WatermarkStatus.IDLE,
        *BARRIERS,
        EventAnnouncement(BARRIERS[0], 2**63),
        CancelCheckpointMarker(CheckpointID(1)),
        EndOfData(drain=True),
        EndOfData(drain=False),
        EndOfPartition(),
        EndOfChannelState(),
        EndOfChannelState(is_last=False),
    ],
)
@pytest.mark.parametrize("priority", [True, False])
def test_control_elements(element: ControlElement, *, priority: bool) -> None:
    """With channel, number, backlog and priority."""
    polled = BufferAndBacklog(element, 2**50, 2**20, is_priority=priority)

    read = frames.decode_downstream(frames.control_frame(2**31, polled), None)

    assert read == ElementFrame(2**31, element, 2**50, 2**20, priority)


def test_a_batch_travels_beside_its_header() -> None:
    """The batch that Flight delivers is the element."""
    header = frames.data_header(3, BufferAndBacklog(BATCH, 7, 2), BATCH.nbytes)

    read = frames.decode_downstream(header, BATCH)

    assert read == ElementFrame(3, BATCH, 7, 2, priority=False)
    assert isinstance(read, ElementFrame) and read.element is BATCH


def test_a_batch_of_other_columns_brings_its_schema() -> None:
    """Header and batch are one message."""
    with_metadata = BATCH.replace_schema_metadata({"k": "v"})

    read = frames.decode_downstream(frames.foreign_data_frame(3, BufferAndBacklog(BATCH, 7, 2), with_metadata), None)

    assert isinstance(read, ElementFrame) and isinstance(read.element, pa.RecordBatch)
    assert (read.channel_id, read.sequence_number, read.backlog, read.priority) == (3, 7, 2, False)
    assert read.element.equals(with_metadata, check_metadata=True)


@pytest.mark.parametrize("body_bytes", [1 << 14, 65_536, (1 << 21) - 8, 1 << 21, 1 << 26])
def test_the_header_moves_a_large_body_to_aligned_memory(body_bytes: int) -> None:
    """Lengths, tags and header before the body add up to a multiple of eight."""

    def varint_bytes(number: int) -> int:
        return max(1, (number.bit_length() + 6) // 7)

    header = frames.data_header(0, BufferAndBacklog(BATCH, 0, 0), body_bytes)

    for ipc_header_bytes in (136, 184, 1096):
        before_body = (
            (1 + varint_bytes(ipc_header_bytes) + ipc_header_bytes)
            + (1 + varint_bytes(len(header)) + len(header))
            + (2 + varint_bytes(body_bytes))
        )
        assert before_body % 8 == 0


@pytest.mark.parametrize(
    "frame",
    [
        frames.OpenChannel(5, 6, 7, "graph_vertex_0_1", "graph_ünï_3_0"),
        frames.AddCredit(2**32 - 1, 4),
        frames.ResumeChannel(9),
        frames.ReleaseChannel(0),
    ],
)
def test_what_consumers_say(frame: frames.UpstreamFrame) -> None:
    """Each kind."""
    assert frames.decode_upstream(frames.encode_upstream(frame)) == frame


def test_a_name_of_kilobytes_is_refused() -> None:
    """Each of the channels of a stream keeps two names, which had 128 KiB."""
    with pytest.raises(frames.ProtocolError, match="a name of 513 bytes, 512 are the most"):
        frames.decode_upstream(frames.encode_upstream(frames.OpenChannel(5, 6, 7, "p", "c" * 513)))


@pytest.mark.parametrize("cause", ["", "the producer is gone: größer"])
def test_failures(cause: str) -> None:
    """With their cause."""
    failed, closed = frames.ChannelFailed(4, cause), frames.ExchangeClosed(cause)

    assert frames.decode_downstream(frames.channel_failed_frame(failed), None) == failed
    assert frames.decode_downstream(frames.exchange_closed_frame(closed), None) == closed


@pytest.mark.parametrize(
    "message", [None, b"", b"\x00", b"\xff" * 18, b"\x01" * 5, b"\x01" + b"\0" * 17, b"\x02" + b"\0" * 17, b"\x14\xff"]
)
def test_nonsense_from_a_producer(message: bytes | None) -> None:
    """Raises, whatever it is."""
    with pytest.raises(frames.ProtocolError):
        frames.decode_downstream(message, None)


@pytest.mark.parametrize("message", [None, b"", b"\x00", b"\xff\xff", b"\x21\x00", b"\x20" + b"\xff" * 30])
def test_nonsense_from_a_consumer(message: bytes | None) -> None:
    """Raises, whatever it is."""
    with pytest.raises(frames.ProtocolError):
        frames.decode_upstream(message)


def test_the_descriptor_names_version_and_edge() -> None:
    """Another version is refused with the way out."""
    assert frames.edge_of_descriptor(frames.stream_descriptor("a -> b c")) == "a -> b c"
    for other in (b"snapline.exchange/2 e", b"", None, b"\xff\xfe"):
        with pytest.raises(frames.ProtocolError, match="one version of Snapline"):
            frames.edge_of_descriptor(other)
