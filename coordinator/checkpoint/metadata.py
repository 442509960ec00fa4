"""The file `_metadata`: from a checkpoint to bytes and back, and the pointer that a completed store keeps of it.

Decides the format and what is wrong with bytes that do not follow it; never touches storage. Layout, big endian:

    magic "SNAPMETA" | CRC-32 of the rest of the header | format version | body length | SHA-256 of the body | body

The header is the same for all format versions, the body belongs to its version (1: `protos/metadata.proto`). A reader
stays for every version that was ever released.

Paths in the file are relative to the directory that holds it, so that a savepoint can be moved as a whole; in memory
they are relative to the job's checkpoint directory, or absolute URLs. Mirrors Flink's MetadataV3Serializer and
Checkpoints.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import Any

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.properties import CheckpointProperties
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import check_parallelism
from snapline.dataflow.snapshot.handles import CheckpointMetadata, MasterState, OperatorState, SegmentStateHandle
from snapline.dataflow.urls import is_absolute
from snapline.dataflow.wire.protobuf_fields import enum_tables
from snapline.dataflow.wire.state_codec import decode_operator_subtask_state, encode_operator_subtask_state
from snapline.protos import metadata_pb2 as pb

METADATA_FILE_NAME = "_metadata"
MAGIC = b"SNAPMETA"
FORMAT_VERSION = 1
_CRC = struct.Struct(">I")
_HEADER = struct.Struct(">IQ32s")
HEADER_SIZE = len(MAGIC) + _CRC.size + _HEADER.size
MAX_METADATA_BYTES = 1 << 30
"""Longer ones are refused before they are read: that of 100,000 subtasks has about 100 MB."""

_TYPE_TO_NUMBER, _TYPE_FROM_NUMBER = enum_tables(
    SnapshotType, pb.CheckpointMetadata.DESCRIPTOR.fields_by_name["snapshot_type"]
)


class MetadataError(SnaplineError):
    """A `_metadata` file cannot be used; names the file and the way out."""


class NotMetadata(MetadataError):
    """The file is something else."""


class TruncatedMetadata(MetadataError):
    """The file ends too early."""


class UnsupportedMetadataVersion(MetadataError):
    """The file was written in a format that this release does not know."""


class CorruptMetadata(MetadataError):
    """A checksum does not fit: bytes have changed since the file was written."""


def checkpoint_location(checkpoint_id: CheckpointID) -> str:
    """Directory of a checkpoint, relative to the job's checkpoint directory."""
    return f"chk-{checkpoint_id}"


def metadata_path(location: str) -> str:
    """Return the path of the `_metadata` file in a checkpoint's directory."""
    return f"{location.rstrip('/')}/{METADATA_FILE_NAME}"


# --- the file ---------------------------------------------------------------------------------------------------------


def build_metadata(metadata: CheckpointMetadata, directory: str) -> bytes:
    """The content of `<directory>/_metadata`. `directory` as in `CompletedCheckpoint.location`."""
    body = _encode_body(metadata, lambda path: _relative_path(path, directory)).SerializeToString()
    header = _HEADER.pack(FORMAT_VERSION, len(body), hashlib.sha256(body).digest())
    return b"".join((MAGIC, _CRC.pack(zlib.crc32(header)), header, body))


def parse_metadata(data: bytes, directory: str) -> CheckpointMetadata:
    """What `<directory>/_metadata` holds, paths resolved against `directory`. Raises MetadataError."""
    file = metadata_path(directory)
    if data[: len(MAGIC)] != MAGIC and not MAGIC.startswith(data[: len(MAGIC)]) and not _header_fits(data):
        raise NotMetadata(
            f"{file} is not the metadata of a checkpoint: name the directory of a checkpoint or savepoint, or its "
            f"{METADATA_FILE_NAME} file"
        )
    if len(data) < HEADER_SIZE:
        raise TruncatedMetadata(f"{file} ends after {len(data)} bytes, within its header: copy the snapshot again")
    if data[: len(MAGIC)] != MAGIC or not _header_fits(data):
        raise CorruptMetadata(f"{file} is damaged: the checksum of its header does not fit; copy the snapshot again")
    version, length, digest = _HEADER.unpack_from(data, len(MAGIC) + _CRC.size)
    reader = _READERS.get(version)
    if reader is None:
        known = ", ".join(map(str, sorted(_READERS)))
        raise UnsupportedMetadataVersion(
            f"{file} has format version {version}, this release reads {known}: use the release that wrote it, or a newer one"
        )
    body = data[HEADER_SIZE:]
    if len(body) < length:
        raise TruncatedMetadata(
            f"{file} ends after {len(data)} of {HEADER_SIZE + length} bytes: copy the snapshot again"
        )
    if len(body) > length or hashlib.sha256(body).digest() != digest:
        raise CorruptMetadata(f"{file} is damaged: its checksum does not fit; copy the snapshot again")
    try:
        return reader(body, directory)
    except Exception as error:  # whoever can make the checksum right can make anything of the body
        raise CorruptMetadata(
            f"{file} is intact and makes no sense ({type(error).__name__}: {error}): restore another snapshot, and report "
            "this as a defect if Snapline wrote it"
        ) from error


def declared_size(header: bytes, directory: str) -> int:
    """How many bytes `<directory>/_metadata` has that begins with these HEADER_SIZE bytes; HEADER_SIZE for what is
    none. Raises CorruptMetadata for more than MAX_METADATA_BYTES, which nobody should read."""
    length: int = _HEADER.unpack_from(header, len(MAGIC) + _CRC.size)[1] if _header_fits(header) else 0
    if length > MAX_METADATA_BYTES:
        raise CorruptMetadata(
            f"{metadata_path(directory)} says that it has {length} bytes, and {MAX_METADATA_BYTES} is the most that is "
            "read: it is damaged, or forged; restore another snapshot"
        )
    return HEADER_SIZE + length


def _header_fits(data: bytes) -> bool:
    if len(data) < HEADER_SIZE:
        return False
    (crc,) = _CRC.unpack_from(data, len(MAGIC))
    return crc == zlib.crc32(data[len(MAGIC) + _CRC.size : HEADER_SIZE])


def _encode_body(metadata: CheckpointMetadata, relocate: Callable[[str], str]) -> pb.CheckpointMetadata:
    message = pb.CheckpointMetadata(
        job_id=metadata.job_id,
        job_name=metadata.job_name,
        checkpoint_id=metadata.checkpoint_id,
        timestamp_ms=metadata.timestamp_ms,
    )
    message.snapshot_type = _TYPE_TO_NUMBER[metadata.snapshot_type]  # type: ignore[assignment]
    for operator in metadata.operators:
        entry = message.operators.add(
            operator_id=operator.operator_id,
            uid=operator.uid,
            name=operator.name,
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
            fully_finished=operator.fully_finished,
            finished_subtasks=operator.finished_subtasks,
        )
        for subtask_index, state in operator.subtasks.items():
            subtask = entry.subtasks.add(subtask_index=subtask_index)
            subtask.state.SetInParent()
            encode_operator_subtask_state(state, subtask.state)
            if any(type(handle) is SegmentStateHandle for handle in state.stream_handles):
                _relocate(subtask.state, relocate)
    for master in metadata.master_states:
        message.master_states.add(hook_id=master.hook_id, version=master.version, data=master.data)
    return message


def _read_version_1(body: bytes, directory: str) -> CheckpointMetadata:
    message = pb.CheckpointMetadata.FromString(body)
    operators = []
    for entry in message.operators:
        check_parallelism(entry.max_parallelism, entry.parallelism)
        subtasks = {}
        for subtask in entry.subtasks:
            _relocate(subtask.state, lambda path: _resolved_path(path, directory))
            subtasks[subtask.subtask_index] = decode_operator_subtask_state(subtask.state)
        operators.append(
            OperatorState(
                operator_id=OperatorID(entry.operator_id),
                uid=entry.uid,
                name=entry.name,
                parallelism=entry.parallelism,
                max_parallelism=entry.max_parallelism,
                subtasks=subtasks,
                fully_finished=entry.fully_finished,
                finished_subtasks=tuple(entry.finished_subtasks),
            )
        )
    return CheckpointMetadata(
        job_id=JobID(message.job_id),
        job_name=message.job_name,
        checkpoint_id=CheckpointID(message.checkpoint_id),
        timestamp_ms=message.timestamp_ms,
        snapshot_type=_snapshot_type(message.snapshot_type),
        operators=tuple(operators),
        master_states=tuple(MasterState(m.hook_id, m.version, m.data) for m in message.master_states),
    )


_READERS: dict[int, Callable[[bytes, str], CheckpointMetadata]] = {1: _read_version_1}


def _snapshot_type(number: int) -> SnapshotType:
    kind = _TYPE_FROM_NUMBER.get(number)
    if not isinstance(kind, SnapshotType):
        raise ValueError(f"there is no snapshot type {number}")  # noqa: TRY004 - the value is wrong, not its type
    return kind


def _relocate(state: Any, relocate: Callable[[str], str]) -> None:
    for parts in (state.managed_keyed, state.managed_operator, state.input_channel, state.output_channel):
        for part in parts:
            if part.handle.HasField("segment"):
                part.handle.segment.path = relocate(part.handle.segment.path)


# --- paths ------------------------------------------------------------------------------------------------------------


def _relative_path(path: str, directory: str) -> str:
    """`path` as seen from `directory`; absolute paths elsewhere stay."""
    directory = directory.rstrip("/")
    if path.startswith(f"{directory}/"):
        return path[len(directory) + 1 :]
    if is_absolute(path) == is_absolute(directory):
        parent = directory.rpartition("/")[0]
        prefix = f"{parent}/" if parent else ""
        if path.startswith(prefix) and not (is_absolute(path) and parent.endswith(("/", ":"))):
            return f"../{path[len(prefix) :]}"
    if not is_absolute(path):
        raise CorruptMetadata(
            f"a snapshot in {directory} cannot refer to {path}, which lies in the checkpoint directory of its job: it "
            "could not be moved"
        )
    return path


def _resolved_path(path: str, directory: str) -> str:
    """Inverse of `_relative_path`, for a directory that may have been moved."""
    if is_absolute(path):
        return path
    directory = directory.rstrip("/")
    while path.startswith("../"):
        directory, path = directory.rpartition("/")[0], path[3:]
    return f"{directory}/{path}" if directory else path


# --- the pointer ------------------------------------------------------------------------------------------------------


def encode_pointer(checkpoint: CompletedCheckpoint) -> bytes:
    """What a completed checkpoint store keeps of a checkpoint."""
    properties = checkpoint.properties
    pointer = pb.CompletedCheckpointPointer(
        checkpoint_id=checkpoint.checkpoint_id,
        location=checkpoint.location,
        completion_timestamp_ms=checkpoint.completion_timestamp_ms,
        discard_on_subsumed=properties.discard_on_subsumed,
        discard_on_finished=properties.discard_on_finished,
        discard_on_canceled=properties.discard_on_canceled,
        discard_on_failed=properties.discard_on_failed,
        discard_on_suspended=properties.discard_on_suspended,
        is_unclaimed=properties.is_unclaimed,
    )
    pointer.snapshot_type = _TYPE_TO_NUMBER[properties.snapshot_type]  # type: ignore[assignment]
    return pointer.SerializeToString()


def pointer_location(pointer: bytes) -> str:
    """The directory whose `_metadata` has to be read. Raises MetadataError."""
    return _parse_pointer(pointer).location


def resolve_pointer(pointer: bytes, metadata: CheckpointMetadata, job_id: JobID) -> CompletedCheckpoint:
    """The checkpoint that a pointer stands for, given the `_metadata` in its directory. Raises MetadataError."""
    parsed = _parse_pointer(pointer)
    if parsed.checkpoint_id != metadata.checkpoint_id:
        raise CorruptMetadata(
            f"{metadata_path(parsed.location)} holds checkpoint {metadata.checkpoint_id}, and not {parsed.checkpoint_id} as "
            f"the completed checkpoint store of job {job_id} says: put the directory back as it was"
        )
    if not is_absolute(parsed.location) and metadata.job_id != job_id:
        raise CorruptMetadata(
            f"{metadata_path(parsed.location)} in the directory of job {job_id} holds a checkpoint of job {metadata.job_id}: put the "
            "directory back as it was"
        )
    properties = CheckpointProperties(
        snapshot_type=_snapshot_type(parsed.snapshot_type),
        forced=False,
        discard_on_subsumed=parsed.discard_on_subsumed,
        discard_on_finished=parsed.discard_on_finished,
        discard_on_canceled=parsed.discard_on_canceled,
        discard_on_failed=parsed.discard_on_failed,
        discard_on_suspended=parsed.discard_on_suspended,
        is_unclaimed=parsed.is_unclaimed,
    )
    return CompletedCheckpoint(
        job_id=job_id,
        job_name=metadata.job_name,
        checkpoint_id=metadata.checkpoint_id,
        timestamp_ms=metadata.timestamp_ms,
        completion_timestamp_ms=parsed.completion_timestamp_ms,
        properties=properties,
        location=parsed.location,
        operators=metadata.operators,
        master_states=metadata.master_states,
    )


def _parse_pointer(pointer: bytes) -> pb.CompletedCheckpointPointer:
    try:
        parsed = pb.CompletedCheckpointPointer.FromString(pointer)
    except Exception as error:
        raise CorruptMetadata("a pointer in the completed checkpoint store is damaged: remove it by hand") from error
    if not parsed.location or not parsed.snapshot_type:
        raise CorruptMetadata("a pointer in the completed checkpoint store is damaged: remove it by hand")
    return parsed
