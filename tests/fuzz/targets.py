"""Everything that reads bytes of others, each with what draws its inputs and the errors that it may raise.

Any other error is a finding, as is a run that takes longer or more memory than anything here needs.
"""

from __future__ import annotations

import hashlib
import random
import socket
import struct
import tempfile
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from google.protobuf.message import DecodeError

from snapline.connectors import ParquetSource
from snapline.coordinator.checkpoint import metadata
from snapline.coordinator.checkpoint.metadata import MetadataError, build_metadata, parse_metadata, pointer_location
from snapline.coordinator.checkpoint.statistics.stats_persistence import StatisticsUnreadable, decode_statistics
from snapline.coordinator.external.external_program import ExternalProgram, JobFound, ProgramIdentity, ProgramSaid
from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.api.state import ValueStateDescriptor
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.errors import ConnectorError, SnaplineError, StateError
from snapline.dataflow.ids import AllocationID, CheckpointID, JobID, ResourceID
from snapline.dataflow.snapshot.handles import CheckpointMetadata, MasterState
from snapline.dataflow.snapshot.state_format import KEY_COLUMN, STATE_COLUMN, read_header, with_role
from snapline.dataflow.snapshot.state_format import MAGIC as STATE_MAGIC
from snapline.dataflow.wire.codec import WireError, decode_envelope, decode_job_graph, encode_job_graph
from snapline.protos import cluster_pb2, external_pb2, job_pb2, metadata_pb2
from snapline.runtime.cores.credentials import CredentialRefused, Identity, Role, identify, sign_credential
from snapline.runtime.leaders.leader_retrieval import open_leader_table
from snapline.runtime.settings import from_toml
from snapline.runtime.signing import LeaderSigner, NotSigned, Signer
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog
from snapline.taskmanager.network.flight.frames import ProtocolError, data_header, decode_downstream, decode_upstream
from snapline.taskmanager.network.host.socket_messages import SocketReader, SocketWriter
from tests.fuzz.archived_jobs import draw_archived_job, show_archived_job
from tests.fuzz.drawn_inputs import fill, mutate, of_examples, of_message
from tests.fuzz.state_files import forge, restore_states, restore_windows, states_of_functions, states_of_windows
from tests.fuzz.user_files import draw_avro, draw_csv, draw_json, reading
from tests.unit.connectors.parquet.places import Place
from tests.unit.taskmanager.state.outside.test_row_log import ODD, Owner

OURS = Signer((b"ours",))
LEADERS = LeaderSigner(("ours",))


@dataclass(frozen=True)
class Target:
    """One reader."""

    draw: Callable[[random.Random], bytes]
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    """What it may raise."""
    inputs: int = 150
    """So many in `make test`."""


def _envelope(data: bytes) -> object:
    return decode_envelope(cluster_pb2.Envelope.FromString(data))


def _job_graph(data: bytes) -> object:
    graph = decode_job_graph(job_pb2.JobGraph.FromString(data))
    assert decode_job_graph(encode_job_graph(graph)) == graph or "nan" in str(graph)
    return graph


def _program(data: bytes) -> object:
    """A conversation: messages of a program, each with its length before it, whose job is found at once."""
    program = ExternalProgram(ProgramIdentity(ResourceID("p"), lambda *_: AllocationID("a"), "i", "0.1.0", 1 << 20))
    effects: list[Any] = []
    while len(data) > 1:
        size, data = data[0], data[1:]
        message, data = external_pb2.FromProgram.FromString(data[:size]), data[size:]
        effects += program.handle(ProgramSaid(message))
        effects += program.handle(JobFound(JobID("j")))
    return effects


def _conversation(rng: random.Random) -> bytes:
    said = [fill(rng, external_pb2.FromProgram()).SerializeToString()[:255] for _ in range(rng.randrange(1, 5))]
    said.insert(
        0, external_pb2.FromProgram(register=external_pb2.Register(protocol_version=1, job="j")).SerializeToString()
    )
    return b"".join(bytes([len(each)]) + each for each in said)


def _metadata_bytes(rng: random.Random) -> bytes:
    """A body of any content behind a header that fits, as a forger would make it."""
    body = fill(rng, metadata_pb2.CheckpointMetadata()).SerializeToString()
    body = mutate(rng, body) if rng.random() < 0.5 else body
    header = struct.pack(">IQ32s", metadata.FORMAT_VERSION, len(body), hashlib.sha256(body).digest())
    data = metadata.MAGIC + struct.pack(">I", zlib.crc32(header)) + header + body
    return mutate(rng, data) if rng.random() < 0.3 else data


def _state_header(rng: random.Random) -> bytes:
    """A header of keyed state whose checksum is right: numbers at random, and a schema that is changed."""
    key = with_role(pa.field("k", pa.int64()), KEY_COLUMN)
    state = with_role(ValueStateDescriptor("v", pa.string()).to_field(), STATE_COLUMN)
    schema = pa.schema([key, state]).serialize().to_pybytes()
    fixed = struct.pack("<5I", *(rng.choice((0, 1, 2, 128, 1 << 15, (1 << 32) - 1)) for _ in range(5)))
    header = mutate(rng, fixed + rng.randbytes(rng.choice((0, 8, 16, 64))) + schema)
    prefix = struct.Struct("<8sIIQ")
    return prefix.pack(STATE_MAGIC, 1, len(header), xxhash.xxh64_intdigest(header)) + header


def _read_state_header(data: bytes) -> object:
    return read_header(lambda offset, size: data[offset : offset + size])


def _frame(rng: random.Random) -> bytes:
    """One of every kind, with a header of the right length, or nearly."""
    return bytes([rng.randrange(24), rng.randrange(4)]) + mutate(rng, rng.randbytes(rng.choice((6, 14, 22, 30, 80))))


class _Said:
    """A connection on which these bytes come, a few at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv_into(self, target: memoryview) -> int:
        """Some of them."""
        piece = self._data[: min(len(target), 700)]
        target[: len(piece)] = piece
        self._data = self._data[len(piece) :]
        return len(piece)


def _read_host_stream(data: bytes) -> object:
    """All messages of a socket of the host, as the receiving thread decodes them."""
    reader, read = SocketReader(cast("socket.socket", _Said(data))), 0
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return read
        read += 1
        if chunk.data is not None:
            decode_downstream(data_header(1, BufferAndBacklog(chunk.data, 1, 0), 8), chunk.data)


def _host_stream_example() -> bytes:
    """A schema, batches of it, one with a dictionary, and a message without any."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = SocketWriter(theirs)
        plain = pa.record_batch({"n": [1, 2, None], "text": ["a", None, "ccc"], "list": [[1], [], None]})
        for batch in (plain, plain.slice(1), pa.record_batch({"d": pa.array(["a", "b"]).dictionary_encode()})):
            writer.begin(batch.schema)
            writer.write_with_metadata(batch, b"header of 22 bytes ...")
        writer.write_metadata(b"a watermark")
        return ours.recv(1 << 16)


def _toml(data: bytes) -> object:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        return from_toml(Path(file.name))


def _credential(data: bytes) -> object:
    return identify(["secret"], data.decode("latin-1"), now_s=0)


def _parquet(rng: random.Random) -> bytes:
    """A small file whose footer is changed in a few places."""
    data = bytearray(_PARQUET)
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for _ in range(rng.choice((1, 1, 2, 4))):
        data[rng.randrange(begin, len(data))] = rng.randrange(256)
    return bytes(data)


def _read_parquet(data: bytes) -> object:
    """All of it, as a driver and then a task read it."""
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        file.write(data)
        file.flush()
        source = ParquetSource(file.name)
        reader = source.create_reader(Place())
        reader.add_splits(source.enumerate_splits())
        while reader.poll_next(0).status is not InputStatus.END_OF_INPUT:
            continue
        reader.close()
        return source


def _parquet_example() -> bytes:
    columns = {"n": range(60), "text": [str(n) for n in range(60)], "at": pa.array(range(60), pa.timestamp("us"))}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=25)
    return sink.getvalue().to_pybytes()


def _row_log() -> Owner:
    """A log of one segment, whose rows have several sizes."""
    owner = Owner()
    owner.put({number: bytes([number]) * (8 * (1 + number % 5) + ODD) for number in range(40)})
    return owner


def _read_row_log(data: bytes) -> object:
    """A segment that the disk gives back as these bytes, by the positions that are known, and from its beginning."""
    owner = _row_log()
    (segment,) = owner.log.freeze()
    size = min(len(data), segment.end)
    segment.segment.data[:size] = np.frombuffer(data[:size], np.uint8)
    owner.log.read(np.array(list(owner.positions.values()), np.int64))
    rows, _ = segment.live()
    rows.read()
    return owner.log.live(0)


def _segment_example() -> bytes:
    (segment,) = _row_log().log.freeze()
    found: bytes = segment.segment.data[: segment.end].tobytes()
    return found


_PARQUET = _parquet_example()
_POINTER = metadata_pb2.CompletedCheckpointPointer
_SNAPSHOT = CheckpointMetadata(
    JobID("a" * 32), "job", CheckpointID(7), 1, SnapshotType.SAVEPOINT, (), (MasterState("h", 1, b"x"),)
)
_CREDENTIAL = sign_credential("secret", Identity(Role.EXTERNAL, "job", expires_s=9)).encode()
_SETTINGS = b'"security.auth.token" = "a"\n[execution]\ncheckpointing.interval = "1 s"\nx = [1, {a = 2}]\n'

TARGETS: dict[str, Target] = {
    "archived_job": Target(draw_archived_job, show_archived_job, ()),
    "avro": Target(draw_avro, reading("avro"), (ConnectorError,)),
    "csv": Target(draw_csv, reading("csv"), (ConnectorError,)),
    "json": Target(draw_json, reading("json"), (ConnectorError,)),
    "envelope": Target(of_message(cluster_pb2.Envelope), _envelope, (WireError, DecodeError)),
    "job_graph": Target(of_message(job_pb2.JobGraph), _job_graph, (WireError, DecodeError)),
    "external_program": Target(_conversation, _program, (DecodeError,)),
    "keyed_state": Target(forge(states_of_functions()), restore_states, (StateError,), 25),
    "leader_table": Target(
        of_message(cluster_pb2.LeaderTable), lambda data: open_leader_table(data, LEADERS), (NotSigned,)
    ),
    "metadata": Target(_metadata_bytes, lambda data: parse_metadata(data, "chk-1"), (MetadataError,)),
    "metadata_of_ours": Target(
        of_examples([build_metadata(_SNAPSHOT, "chk-1")]), lambda data: parse_metadata(data, "chk-1"), (MetadataError,)
    ),
    "parquet": Target(_parquet, _read_parquet, (ConnectorError,)),
    "pointer": Target(of_message(_POINTER), pointer_location, (MetadataError,)),
    "row_log": Target(of_examples([_segment_example()]), _read_row_log, (StateError,)),
    "sealed": Target(
        of_examples([OURS.seal("n", b""), OURS.seal("n", b"data" * 9)]), lambda data: OURS.open("n", data), (NotSigned,)
    ),
    "statistics": Target(
        of_message(metadata_pb2.CheckpointStatistics),
        lambda data: decode_statistics(data, 10),
        (StatisticsUnreadable,),
    ),
    "state_header": Target(_state_header, _read_state_header, (StateError,)),
    "downstream_frame": Target(_frame, lambda data: decode_downstream(data, None), (ProtocolError,)),
    "host_stream": Target(of_examples([_host_stream_example()]), _read_host_stream, (ProtocolError,)),
    "upstream_frame": Target(_frame, decode_upstream, (ProtocolError,)),
    "settings": Target(of_examples([_SETTINGS]), _toml, (SnaplineError, tomllib.TOMLDecodeError)),
    "windows": Target(states_of_windows, restore_windows, (StateError, TypeError), 25),
    "credential": Target(of_examples([_CREDENTIAL, b"secret"]), _credential, (CredentialRefused,)),
}
