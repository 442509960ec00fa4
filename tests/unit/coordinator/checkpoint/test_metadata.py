"""`_metadata`: what goes in comes out, wherever the directory is moved; damage is named for what it is."""

from __future__ import annotations

import hashlib
import random
import struct
import zlib
from dataclasses import replace

import pytest

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.metadata import (
    HEADER_SIZE,
    CorruptMetadata,
    MetadataError,
    NotMetadata,
    TruncatedMetadata,
    UnsupportedMetadataVersion,
    build_metadata,
    declared_size,
    encode_pointer,
    parse_metadata,
    pointer_location,
    resolve_pointer,
)
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    ChannelStateHandle,
    CheckpointMetadata,
    KeyedStateHandle,
    MasterState,
    OperatorState,
    OperatorStateEntry,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    SegmentStateHandle,
)


def metadata_in(directory: str, base: str) -> CheckpointMetadata:
    """A checkpoint with every kind of handle; `base` is where shared files lie."""
    state = OperatorSubtaskState(
        managed_keyed=(
            KeyedStateHandle(KeyGroupRange(0, 3), SegmentStateHandle(f"{directory}/tm-1", 7, 9)),
            KeyedStateHandle(KeyGroupRange(4, 7), SegmentStateHandle(f"{base}shared/x", 0, 5), shared_key="x"),
            KeyedStateHandle(KeyGroupRange(4, 7), SegmentStateHandle("s3://other/place", 0, 5)),
        ),
        managed_operator=(
            OperatorStateHandle(
                ByteStreamStateHandle(b"abc"),
                (OperatorStateEntry("splits", OperatorStateMode.UNION, ((0, 1), (1, 2))),),
            ),
        ),
        input_channel=(
            ChannelStateHandle(0, 3, SegmentStateHandle(f"{directory}/tm-1", 16, 2, 0xFEDC_BA98_7654_3210), 2),
        ),
        output_channel=(ChannelStateHandle(1, 0, ByteStreamStateHandle(b""), 1),),
    )
    operator = OperatorState(OperatorID("op"), "uid", "name", 2, 8, {1: state}, finished_subtasks=(0,))
    ended = OperatorState(OperatorID("op2"), "uid2", "name2", 2, 8, fully_finished=True)
    return CheckpointMetadata(
        JobID("job"),
        "flights",
        CheckpointID(5),
        123,
        SnapshotType.SAVEPOINT_SUSPEND,
        (operator, ended),
        (MasterState("hook", 3, b"state"),),
    )


@pytest.mark.parametrize("directory", ["chk-5", "file:///base/job/chk-5", "/mnt/base/job/chk-5"])
def test_round_trip(directory: str) -> None:
    """Everything comes back, in the place where it was written."""
    metadata = metadata_in(directory, directory.removesuffix("chk-5"))

    assert parse_metadata(build_metadata(metadata, directory), directory) == metadata


def test_moved_snapshot_is_found_in_its_new_place() -> None:
    """Paths are relative to the directory, so that moving it as a whole moves its files; other places stay."""
    data = build_metadata(metadata_in("chk-5", ""), "chk-5")

    assert parse_metadata(data, "s3://bucket/kept") == metadata_in("s3://bucket/kept", "s3://bucket/")


def test_savepoint_that_refers_to_its_job_is_refused() -> None:
    """It could not be moved: an error when it is written, not when it is needed."""
    with pytest.raises(CorruptMetadata, match="could not be moved"):
        build_metadata(metadata_in("chk-5", ""), "file:///savepoints/s")


DATA = build_metadata(metadata_in("chk-5", ""), "chk-5")


@pytest.mark.parametrize("length", [0, 1, 8, 40, len(DATA) - 1])
def test_truncated(length: int) -> None:
    """However much is missing."""
    with pytest.raises(TruncatedMetadata, match="chk-5/_metadata ends after"):
        parse_metadata(DATA[:length], "chk-5")


def test_every_flipped_byte_is_noticed() -> None:
    """In the header as in the body."""
    for position in range(len(DATA)):
        damaged = DATA[:position] + bytes([DATA[position] ^ 0x20]) + DATA[position + 1 :]
        with pytest.raises(CorruptMetadata, match="is damaged"):
            parse_metadata(damaged, "chk-5")


def test_trailing_bytes_are_noticed() -> None:
    """Two files glued together are no snapshot."""
    with pytest.raises(CorruptMetadata):
        parse_metadata(DATA + b"x", "chk-5")


@pytest.mark.parametrize("data", [b"PAR1" + bytes(100), b"{}", b"\x00" * 200])
def test_other_files_are_named_for_what_they_are(data: bytes) -> None:
    """A Parquet file is no damaged snapshot."""
    with pytest.raises(NotMetadata, match="name the directory of a checkpoint or savepoint"):
        parse_metadata(data, "chk-5")


def test_a_body_that_somebody_made_up_is_refused_in_one_line() -> None:
    """Its checksums are right: any change of up to three bytes is read, or refused as metadata."""
    file = build_metadata(metadata_in("chk-7", ""), "chk-7")
    refusals = []
    for seed in range(1000):
        chance = random.Random(seed)
        body = bytearray(file[HEADER_SIZE:])
        for _ in range(chance.randint(1, 3)):
            body[chance.randrange(len(body))] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            parse_metadata(signed(bytes(body)), "chk-7")
        except CorruptMetadata as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert not [text for text in refusals if "\n" in text]


def signed(body: bytes, length: int | None = None) -> bytes:
    """A file with this body, whose checksums are right."""
    header = struct.pack(">IQ32s", 1, len(body) if length is None else length, hashlib.sha256(body).digest())
    return b"SNAPMETA" + struct.pack(">I", zlib.crc32(header)) + header + body


@pytest.mark.parametrize("numbers", [(0, 8), (9, 8), (1, 0), (2**31 - 1, 8), (2**31 - 1, 2**31 - 1)])
def test_a_parallelism_that_no_job_can_have_is_refused(numbers: tuple[int, int]) -> None:
    """Whoever restored it counted two billion subtasks in memory, or ended in a traceback."""
    metadata = metadata_in("chk-5", "")
    parallelism, most = numbers
    lies = replace(metadata.operators[0], parallelism=parallelism, max_parallelism=most)
    data = build_metadata(replace(metadata, operators=(lies,)), "chk-5")
    with pytest.raises(CorruptMetadata, match=r"chk-5/_metadata is intact and makes no sense .*parallelism"):
        parse_metadata(data, "chk-5")


def test_a_header_that_promises_too_much_is_refused() -> None:
    """Nobody reads four gigabytes because a file says that it has them."""
    with pytest.raises(CorruptMetadata, match=r"chk-7/_metadata says that it has 4294967296 bytes.*restore another"):
        declared_size(signed(b"", 1 << 32), "chk-7")


def test_other_version() -> None:
    """A format of the future says so."""
    rest = struct.pack(">IQ32s", 9, 0, bytes(32))
    with pytest.raises(UnsupportedMetadataVersion, match="format version 9, this release reads 1"):
        parse_metadata(b"SNAPMETA" + struct.pack(">I", zlib.crc32(rest)) + rest, "chk-5")


def test_pointer_and_metadata_make_the_checkpoint() -> None:
    """What the store keeps and what lies in the directory together are the completed checkpoint."""
    properties = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.RETAIN_ON_FAILURE)
    metadata = replace(metadata_in("chk-5", ""), snapshot_type=SnapshotType.CHECKPOINT)
    checkpoint = CompletedCheckpoint(
        metadata.job_id,
        metadata.job_name,
        metadata.checkpoint_id,
        metadata.timestamp_ms,
        200,
        properties,
        "chk-5",
        metadata.operators,
        metadata.master_states,
    )
    pointer = encode_pointer(checkpoint)

    assert pointer_location(pointer) == "chk-5"
    assert resolve_pointer(pointer, metadata, JobID("job")) == checkpoint


def test_pointer_to_another_checkpoint_is_refused() -> None:
    """Somebody put other files into the directory."""
    metadata = metadata_in("chk-5", "")
    pointer = encode_pointer(CompletedCheckpoint.from_metadata(metadata, CheckpointProperties.for_savepoint(), "chk-5"))

    with pytest.raises(CorruptMetadata, match="holds checkpoint 6"):
        resolve_pointer(pointer, replace(metadata, checkpoint_id=CheckpointID(6)), JobID("job"))
    with pytest.raises(MetadataError, match="pointer"):
        pointer_location(b"\xff\xff")


def test_a_checkpoint_of_another_job_in_the_place_of_ones_own_is_refused() -> None:
    """Both are signed by the cluster: who can write to the storage exchanged the directories of two checkpoints of one
    number, and a job went on with the state of the other one. A snapshot that a job was started from lies elsewhere."""
    metadata = metadata_in("chk-5", "")
    own, foreign = (
        encode_pointer(CompletedCheckpoint.from_metadata(metadata, CheckpointProperties.for_savepoint(), location))
        for location in ("chk-5", "file:///ckpt/job/chk-5")
    )

    with pytest.raises(CorruptMetadata, match="in the directory of job other holds a checkpoint of job job"):
        resolve_pointer(own, metadata, JobID("other"))
    assert JobID("other") == resolve_pointer(foreign, metadata, JobID("other")).job_id
