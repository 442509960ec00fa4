"""Leader retrieval over gRPC: follows the table of leaders that a coordinator publishes.

Tries the configured addresses in turn, stays with one that answers, and starts over when the stream breaks, with a
pause that grows. Reports a table only when it differs from the one before. Decides nothing: registration is the core's.
Mirrors Flink's LeaderRetrievalService; the one on ZooKeeper reports the same tables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from snapline.dataflow.ids import JobID, LeaderSessionID
from snapline.protos import cluster_pb2, cluster_pb2_grpc
from snapline.runtime.logs import Logger
from snapline.runtime.rpc.grpc_channels import reason_of, shared_channel
from snapline.runtime.rpc.security import Security
from snapline.runtime.signing import LeaderSigner, NotSigned

PAUSE_MIN_SECONDS = 0.1
PAUSE_MAX_SECONDS = 2.0

TABLE_NAME = "leader/table"
"""The name under which a table of leaders is signed."""


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Where a leader is; an empty address: nowhere."""

    address: str = ""
    session: LeaderSessionID = LeaderSessionID("")


@dataclass(frozen=True, slots=True)
class LeaderTable:
    """All leaders that one coordinator knows."""

    resource_manager: LeaderAddress = LeaderAddress()
    job_masters: Mapping[JobID, LeaderAddress] = field(default_factory=dict)


def encode_leader_table(table: LeaderTable) -> cluster_pb2.LeaderTable:
    """Encode the table of leaders as it is stored and sent."""
    message = cluster_pb2.LeaderTable(resource_manager=_encode_leader(table.resource_manager))
    for job_id, leader in table.job_masters.items():
        message.job_masters[job_id].CopyFrom(_encode_leader(leader))
    return message


def _encode_leader(leader: LeaderAddress) -> cluster_pb2.LeaderInformation:
    return cluster_pb2.LeaderInformation(address=leader.address, leader_session_id=leader.session)


def seal_leader_table(table: LeaderTable, signer: LeaderSigner) -> bytes:
    """Encode the table of leaders for a place where others can write: it carries who wrote it."""
    message = encode_leader_table(table)
    message.signature = signer.sign(TABLE_NAME, _signed_part(message))
    return message.SerializeToString()


def open_leader_table(data: bytes, signer: LeaderSigner) -> LeaderTable:
    """Decode what `seal_leader_table` encoded. Raises NotSigned when somebody else did: who followed that table would
    send its token to wherever it points."""
    try:
        message = cluster_pb2.LeaderTable.FromString(data)
    except DecodeError as error:
        raise NotSigned(f"what should be the table of leaders is none: {error}") from error
    if not signer.is_signed(TABLE_NAME, _signed_part(message), message.signature):
        raise NotSigned(
            "the table of leaders was not written by a coordinator that has this cluster's security.auth.token"
        )
    return decode_leader_table(message)


def _signed_part(message: cluster_pb2.LeaderTable) -> bytes:
    """Return the bytes of everything but the signature, in one order of the jobs."""
    unsigned = cluster_pb2.LeaderTable()
    unsigned.CopyFrom(message)
    unsigned.ClearField("signature")
    return unsigned.SerializeToString(deterministic=True)


def decode_leader_table(message: cluster_pb2.LeaderTable) -> LeaderTable:
    """Decode a table of leaders as it was stored and sent."""
    return LeaderTable(
        _decode_leader(message.resource_manager),
        {JobID(job_id): _decode_leader(leader) for job_id, leader in message.job_masters.items()},
    )


def _decode_leader(message: cluster_pb2.LeaderInformation) -> LeaderAddress:
    return LeaderAddress(message.address, LeaderSessionID(message.leader_session_id))


class LeaderRetrieval:
    """One thread that follows the table of leaders."""

    def __init__(
        self,
        addresses: Sequence[str],
        security: Security,
        on_table: Callable[[LeaderTable], None],
        logger: Logger,
    ) -> None:
        self._addresses = tuple(addresses)
        self._security = security
        self._on_table = on_table
        self._logger = logger
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._call: Any = None
        self._last: LeaderTable | None = None
        self._is_away = False
        """Whether it was said that nobody answers; once is enough."""
        self._thread = threading.Thread(target=self._run, name="snapline-leader-retrieval", daemon=True)

    def start(self) -> None:
        """Begin to follow who leads, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread that follows who leads. Idempotent."""
        self._stopping.set()
        with self._lock:
            call = self._call
        if call is not None:
            call.cancel()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = PAUSE_MIN_SECONDS
        attempt = 0
        while not self._stopping.is_set():
            address = self._addresses[attempt % len(self._addresses)]
            attempt += 1
            if self._follow(address):
                pause = PAUSE_MIN_SECONDS
            self._stopping.wait(pause)
            pause = min(pause * 1.5, PAUSE_MAX_SECONDS)

    def _follow(self, address: str) -> bool:
        """Follow until the stream breaks; whether anything came."""
        came = False
        try:
            with shared_channel(address, self._security) as channel:
                stub: Any = cluster_pb2_grpc.LeaderRetrievalStub(channel)
                with self._lock:
                    if self._stopping.is_set():
                        return False
                    self._call = stub.Watch(cluster_pb2.WatchLeadersRequest(), metadata=self._security.metadata)
                try:
                    for message in self._call:
                        came = True
                        table = decode_leader_table(message)
                        if table != self._last:
                            self._last = table
                            self._on_table(table)
                finally:
                    self._call.cancel()  # other streams use the channel
        except grpc.RpcError as error:
            if not self._stopping.is_set():
                say = self._logger.info if came or not self._is_away else self._logger.debug
                say("no coordinator answers; trying on", coordinator=address, reason=reason_of(error))
            self._is_away = True
        return came
