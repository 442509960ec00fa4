"""How what flows through an exchange stream looks on the wire.

A batch travels as Flight's own record batch message, its header as that message's `app_metadata`; everything else is a
metadata-only message: header, then what the kind needs. Integers are little endian, texts UTF-8, checkpoint options the
protobuf of checkpoint.proto. Both ends run the same version: the stream's descriptor names it, another one is refused.
It does not know streams, credits or order. Mirrors Flink's NettyMessage and EventSerializer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa
from google.protobuf.message import DecodeError

from snapline.dataflow.columnar.validated import DAMAGE, read_batches, validated
from snapline.dataflow.elements import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfChannelState,
    EndOfData,
    EndOfPartition,
    EventAnnouncement,
    LatencyMarker,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.checkpoint_codec import decode_options, encode_options
from snapline.dataflow.wire.wire_errors import WireError
from snapline.protos import checkpoint_pb2
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog, ElementFrame

PROTOCOL = "snapline.exchange/1"
MAX_NAME_BYTES = 512
"""Bytes that the name of an attempt may have in a request for a channel."""


class ProtocolError(Exception):
    """The peer sent what no version of this file writes."""


# --- frames -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelFailed:
    """Producer -> consumer: nothing more comes on this channel, and that is an error."""

    channel_id: int
    cause: str


@dataclass(frozen=True, slots=True)
class ExchangeClosed:
    """Producer -> consumer: this TaskManager ends; all channels of the stream have failed."""

    cause: str


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """Consumer -> producer: send this subpartition under a number of the consumer's choice (Flink:
    PartitionRequest)."""

    channel_id: int
    subpartition_index: int
    credits: int
    producer: str
    consumer: str


@dataclass(frozen=True, slots=True)
class AddCredit:
    """Consumer -> producer: so many more batches may be sent (Flink: AddCredit)."""

    channel_id: int
    credits: int


@dataclass(frozen=True, slots=True)
class RequestBatches:
    """Consumer -> producer: so many more batches are wanted, on an edge where the consumer asks."""

    channel_id: int
    count: int


@dataclass(frozen=True, slots=True)
class ResumeChannel:
    """Consumer -> producer: the aligned barrier has been processed (Flink: ResumeConsumption)."""

    channel_id: int


@dataclass(frozen=True, slots=True)
class ReleaseChannel:
    """Consumer -> producer: the channel is not read any more (Flink: CancelPartitionRequest)."""

    channel_id: int


DownstreamFrame = ElementFrame | ChannelFailed | ExchangeClosed
UpstreamFrame = OpenChannel | AddCredit | RequestBatches | ResumeChannel | ReleaseChannel

# --- layout -----------------------------------------------------------------------------------------------------------

_HEADER = struct.Struct("<BBIQI")
"""Kind, whether it has priority (length of the padding of a foreign batch), channel, sequence number, backlog."""
_CHANNEL = struct.Struct("<BI")
_CREDIT = struct.Struct("<BII")
_OPEN = struct.Struct("<BIIIHH")
_LONG = struct.Struct("<q")
_BARRIER = struct.Struct("<qq")
_NUMBER = struct.Struct("<Q")


class _Kind:
    """First byte of every message."""

    DATA = 1
    FOREIGN_DATA = 2
    WATERMARK = 3
    ACTIVE = 4
    IDLE = 5
    BARRIER = 6
    ANNOUNCEMENT = 7
    CANCEL = 8
    END_OF_DATA = 9
    END_OF_DATA_DRAIN = 10
    END_OF_PARTITION = 11
    END_OF_CHANNEL_STATE = 12
    END_OF_CHANNEL_STATE_PART = 13
    LATENCY_MARKER = 14
    CHANNEL_FAILED = 20
    EXCHANGE_CLOSED = 21
    OPEN = 32
    CREDIT = 33
    RESUME = 34
    RELEASE = 35
    REQUEST = 36


# A Flight message is a protobuf: the length of IPC header, app_metadata and body, each followed by its bytes. gRPC puts
# it together in memory aligned to 16 bytes, the IPC header is a multiple of 8 long; with an app_metadata of 22 bytes a
# body whose length takes three bytes to write starts at a multiple of 8, so that the consumer need not copy it to
# aligned memory. A batch with its schema inside app_metadata is moved likewise, by two bytes less.
_SMALL_BYTES, _LARGE_BYTES = 1 << 14, 1 << 21
_DATA_PADDING = (b"\0" * 5, b"\0" * 4, b"\0" * 3)
_FOREIGN_DATA_PADDING = (3, 2, 1)


def _size_class(size_bytes: int) -> int:
    return 1 if _SMALL_BYTES <= size_bytes < _LARGE_BYTES else 2 * (size_bytes >= _LARGE_BYTES)


def aligned_read_options() -> pa.ipc.IpcReadOptions:
    """Columns in memory that is not aligned to their type are copied: numpy and numba treat them as another type."""
    return pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific, use_threads=False)


def stream_descriptor(edge_id: str) -> bytes:
    """What a consumer asks for when it opens a stream."""
    return f"{PROTOCOL} {edge_id}".encode()


def edge_of_descriptor(command: bytes | None) -> str:
    """The edge of a descriptor. Raises ProtocolError for another version or something else altogether."""
    protocol, _, edge_id = (command or b"").decode(errors="replace").partition(" ")
    if protocol != PROTOCOL or not edge_id:
        raise ProtocolError(
            f"the peer speaks {protocol[:40]!r}, this TaskManager {PROTOCOL!r}: run one version of Snapline everywhere"
        )
    return edge_id


# --- producer -> consumer ---------------------------------------------------------------------------------------------


def data_header(channel_id: int, polled: BufferAndBacklog, size_bytes: int) -> bytes:
    """What accompanies a batch of this size."""
    padding = _DATA_PADDING[_size_class(size_bytes)]
    return _HEADER.pack(_Kind.DATA, 0, channel_id, polled.sequence_number, polled.backlog) + padding


def foreign_data_frame(channel_id: int, polled: BufferAndBacklog, batch: pa.RecordBatch) -> bytes:
    """A batch whose schema is not the stream's, with its schema: a message of its own."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()
    padding = _FOREIGN_DATA_PADDING[_size_class(content.size)]
    header = _HEADER.pack(_Kind.FOREIGN_DATA, padding, channel_id, polled.sequence_number, polled.backlog)
    return b"".join((header, bytes(padding), content))


def control_frame(channel_id: int, polled: BufferAndBacklog) -> bytes:
    """Encode an element that is no batch, such as a barrier."""
    kind, payload = _control(polled.element)
    header = _HEADER.pack(kind, polled.is_priority, channel_id, polled.sequence_number, polled.backlog)
    return header + payload


def _control(element: StreamElement) -> tuple[int, bytes]:
    if isinstance(element, Watermark):
        return _Kind.WATERMARK, _LONG.pack(element.timestamp_ms)
    if isinstance(element, WatermarkStatus):
        return (_Kind.ACTIVE if element is WatermarkStatus.ACTIVE else _Kind.IDLE), b""
    if isinstance(element, LatencyMarker):
        return _Kind.LATENCY_MARKER, _LONG.pack(element.marked_ms) + element.source_uid.encode()
    if isinstance(element, CheckpointBarrier):
        return _Kind.BARRIER, _barrier(element)
    if isinstance(element, EventAnnouncement):
        return _Kind.ANNOUNCEMENT, _NUMBER.pack(element.sequence_number) + _barrier(element.barrier)
    if isinstance(element, CancelCheckpointMarker):
        return _Kind.CANCEL, _LONG.pack(element.checkpoint_id)
    if isinstance(element, EndOfData):
        return (_Kind.END_OF_DATA_DRAIN if element.drain else _Kind.END_OF_DATA), b""
    if isinstance(element, EndOfPartition):
        return _Kind.END_OF_PARTITION, b""
    if isinstance(element, EndOfChannelState):
        return _Kind.END_OF_CHANNEL_STATE if element.is_last else _Kind.END_OF_CHANNEL_STATE_PART, b""
    raise ProtocolError(f"{type(element).__name__} is no stream element: nothing on the wire stands for it")


def _barrier(barrier: CheckpointBarrier) -> bytes:
    options = checkpoint_pb2.CheckpointOptions()
    encode_options(barrier.options, options)
    return _BARRIER.pack(barrier.checkpoint_id, barrier.timestamp_ms) + options.SerializeToString()


def _read_barrier(payload: bytes) -> CheckpointBarrier:
    checkpoint_id, timestamp_ms = _BARRIER.unpack_from(payload)
    options = checkpoint_pb2.CheckpointOptions.FromString(payload[_BARRIER.size :])
    return CheckpointBarrier(CheckpointID(checkpoint_id), timestamp_ms, decode_options(options))


def channel_failed_frame(frame: ChannelFailed) -> bytes:
    """Encode that one channel has failed, and why."""
    return _CHANNEL.pack(_Kind.CHANNEL_FAILED, frame.channel_id) + frame.cause.encode()


def exchange_closed_frame(frame: ExchangeClosed) -> bytes:
    """Encode that all channels have failed because the exchange was closed."""
    return bytes([_Kind.EXCHANGE_CLOSED]) + frame.cause.encode()


def decode_downstream(metadata: pa.Buffer | bytes | None, batch: pa.RecordBatch | None) -> DownstreamFrame:
    """What a message from a producer says. Raises ProtocolError."""
    try:
        return _decode_downstream(metadata, batch)
    except (struct.error, TypeError, StopIteration, WireError, DecodeError, *DAMAGE) as error:
        raise ProtocolError(f"a message that cannot be read: {error}") from error


def _decode_downstream(metadata: pa.Buffer | bytes | None, batch: pa.RecordBatch | None) -> DownstreamFrame:
    if metadata is None or len(metadata) == 0:
        raise ProtocolError("a message without a header")
    view = memoryview(metadata)
    kind = view[0]
    if kind == _Kind.CHANNEL_FAILED:
        return ChannelFailed(_CHANNEL.unpack_from(view)[1], bytes(view[_CHANNEL.size :]).decode())
    if kind == _Kind.EXCHANGE_CLOSED:
        return ExchangeClosed(bytes(view[1:]).decode())
    _, priority, channel_id, sequence_number, backlog = _HEADER.unpack_from(view)
    element: StreamElement
    if kind == _Kind.DATA:
        if batch is None:
            raise ProtocolError("the header of a batch without its batch")
        element = validated(batch)
    elif kind == _Kind.FOREIGN_DATA:
        content = pa.py_buffer(view[_HEADER.size + priority :])
        element = next(read_batches(content, aligned_read_options()))
        priority = 0
    else:
        element = _read_control(kind, bytes(view[_HEADER.size :]))
    return ElementFrame(channel_id, element, sequence_number, backlog, bool(priority))


def _read_control(kind: int, payload: bytes) -> StreamElement:
    match kind:
        case _Kind.WATERMARK:
            return Watermark(_LONG.unpack(payload)[0])
        case _Kind.ACTIVE:
            return WatermarkStatus.ACTIVE
        case _Kind.IDLE:
            return WatermarkStatus.IDLE
        case _Kind.LATENCY_MARKER:
            return LatencyMarker(_LONG.unpack_from(payload)[0], payload[_LONG.size :].decode())
        case _Kind.BARRIER:
            return _read_barrier(payload)
        case _Kind.ANNOUNCEMENT:
            return EventAnnouncement(_read_barrier(payload[_NUMBER.size :]), _NUMBER.unpack_from(payload)[0])
        case _Kind.CANCEL:
            return CancelCheckpointMarker(CheckpointID(_LONG.unpack(payload)[0]))
        case _Kind.END_OF_DATA:
            return EndOfData(drain=False)
        case _Kind.END_OF_DATA_DRAIN:
            return EndOfData(drain=True)
        case _Kind.END_OF_PARTITION:
            return EndOfPartition()
        case _Kind.END_OF_CHANNEL_STATE:
            return EndOfChannelState()
        case _Kind.END_OF_CHANNEL_STATE_PART:
            return EndOfChannelState(is_last=False)
    raise ProtocolError(f"a message of unknown kind {kind}")


# --- consumer -> producer ---------------------------------------------------------------------------------------------


def encode_upstream(frame: UpstreamFrame) -> bytes:
    """Encode a message from a consumer to its producer."""
    if isinstance(frame, AddCredit):
        return _CREDIT.pack(_Kind.CREDIT, frame.channel_id, frame.credits)
    if isinstance(frame, RequestBatches):
        return _CREDIT.pack(_Kind.REQUEST, frame.channel_id, frame.count)
    if isinstance(frame, ResumeChannel):
        return _CHANNEL.pack(_Kind.RESUME, frame.channel_id)
    if isinstance(frame, ReleaseChannel):
        return _CHANNEL.pack(_Kind.RELEASE, frame.channel_id)
    producer, consumer = frame.producer.encode(), frame.consumer.encode()
    return (
        _OPEN.pack(_Kind.OPEN, frame.channel_id, frame.subpartition_index, frame.credits, len(producer), len(consumer))
        + producer
        + consumer
    )


def decode_upstream(metadata: pa.Buffer | bytes | None) -> UpstreamFrame:
    """What a message from a consumer says. Raises ProtocolError."""
    data = bytes(metadata) if metadata is not None else b""
    try:
        match data[0] if data else 0:
            case _Kind.OPEN:
                _, channel_id, index, credit, producer, consumer = _OPEN.unpack_from(data)
                text = data[_OPEN.size :]
                if len(text) != producer + consumer:
                    raise ProtocolError("a request that is cut off")
                if max(producer, consumer) > MAX_NAME_BYTES:
                    raise ProtocolError(f"a name of {max(producer, consumer)} bytes, {MAX_NAME_BYTES} are the most")
                return OpenChannel(channel_id, index, credit, text[:producer].decode(), text[producer:].decode())
            case _Kind.CREDIT:
                return AddCredit(*_CREDIT.unpack(data)[1:])
            case _Kind.REQUEST:
                return RequestBatches(*_CREDIT.unpack(data)[1:])
            case _Kind.RESUME:
                return ResumeChannel(_CHANNEL.unpack(data)[1])
            case _Kind.RELEASE:
                return ReleaseChannel(_CHANNEL.unpack(data)[1])
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"a message that cannot be read: {error}") from error
    raise ProtocolError(f"a message of unknown kind {data[:1].hex() or 'none'}")
