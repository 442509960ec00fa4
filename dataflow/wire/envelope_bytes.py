"""Envelopes as bytes, for whoever has thousands to send: what `encode_envelope` gives, serialized.

All messages of one wave of a checkpoint (trigger, complete, aborted) differ in their task alone. Protobuf fields may
come in any order, and a message is its fields one after the other; so what a wave shares is serialized once, a task's
attempt id once in its life, and a message is two pieces with a length before them. All else is encoded and serialized
as always.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any

from google.protobuf.message import Message

from snapline.dataflow.ids import ExecutionAttemptID, LeaderSessionID
from snapline.dataflow.wire.checkpoint_codec import (
    REMEMBERED_ATTEMPTS,
    encode_aborted,
    encode_attempt_id,
    encode_complete,
    encode_trigger,
)
from snapline.dataflow.wire.codec import encode_control_message
from snapline.dataflow.wire.messages import (
    ForTasks,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from snapline.dataflow.wire.reflection_codec import Encode
from snapline.dataflow.wire.wire_errors import WireError
from snapline.protos import checkpoint_pb2, cluster_pb2

_LENGTH_DELIMITED = 2
_MESSAGES = cluster_pb2.Envelope.DESCRIPTOR.fields_by_name["messages"].number
_KINDS = cluster_pb2.ControlMessage.DESCRIPTOR.fields_by_name


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _head(number: int, length: int) -> bytes:
    """What stands before the `length` bytes of a nested message, by the number of its field."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(length)


@lru_cache(REMEMBERED_ATTEMPTS)
def _attempt(number: int, attempt_id: ExecutionAttemptID) -> bytes:
    message = checkpoint_pb2.ExecutionAttemptID()
    encode_attempt_id(attempt_id, message)
    data = message.SerializeToString()
    return _head(number, len(data)) + data


class _Wave:
    """Messages of one type, of which those that stand together are mostly of one wave."""

    def __init__(self, kind: str, value_type: type, message_type: type[Message], encode: Encode) -> None:
        self._kind = _KINDS[kind].number
        self._message_type = message_type
        self._encode = encode
        self._attempt_field = message_type.DESCRIPTOR.fields_by_name["attempt_id"].number
        names = (field.name for field in dataclasses.fields(value_type))
        self._shared_of = attrgetter(*(name for name in names if name != "attempt_id"))
        self._last: tuple[Any, bytes] = (None, b"")
        self._heads: dict[int, bytes] = {}
        """The bytes before a message, by its length."""

    def serialize(self, value: Any, attempt_ids: Iterable[ExecutionAttemptID]) -> bytes:
        """As entries of Envelope.messages, one for each task. Raises WireError."""
        try:
            return self._serialize(value, attempt_ids)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise WireError(f"{type(value).__name__} cannot be sent: {error}") from error

    def _serialize(self, value: Any, attempt_ids: Iterable[ExecutionAttemptID]) -> bytes:
        shared, data = self._last
        if shared != (now := self._shared_of(value)):
            message = self._message_type()
            self._encode(value, message)
            message.ClearField("attempt_id")
            data = message.SerializeToString()
            self._last = (now, data)
        field, heads, rest = self._attempt_field, self._heads, len(data)
        parts: list[bytes] = []
        for attempt_id in attempt_ids:
            attempt = _attempt(field, attempt_id)
            length = len(attempt) + rest
            parts += (heads.get(length) or self._remember_head(length), attempt, data)
        return b"".join(parts)

    def _remember_head(self, length: int) -> bytes:
        inner = _head(self._kind, length)
        head = self._heads[length] = _head(_MESSAGES, len(inner) + length) + inner
        return head


_WAVES: dict[type, _Wave] = {
    value_type: _Wave(kind, value_type, message_type, encode)
    for kind, value_type, message_type, encode in (
        ("trigger_checkpoint", TriggerCheckpoint, checkpoint_pb2.TriggerCheckpoint, encode_trigger),
        (
            "notify_checkpoint_complete",
            NotifyCheckpointComplete,
            checkpoint_pb2.NotifyCheckpointComplete,
            encode_complete,
        ),
        ("notify_checkpoint_aborted", NotifyCheckpointAborted, checkpoint_pb2.NotifyCheckpointAborted, encode_aborted),
    )
}


@lru_cache(64)
def _session(leader_session_id: LeaderSessionID) -> bytes:
    return cluster_pb2.Envelope(leader_session_id=leader_session_id).SerializeToString()


def _wave_of(template: Any) -> _Wave:
    wave = _WAVES.get(type(template))
    if wave is None:
        raise WireError(f"{type(template).__name__} cannot be sent to many tasks as one")
    return wave


def serialize_envelope(leader_session_id: LeaderSessionID, messages: Iterable[Any]) -> bytes:
    """One Envelope with these messages, in order. Raises WireError for a value that cannot travel."""
    parts = [_session(leader_session_id)]
    for value in messages:
        if type(value) is ForTasks:
            parts.append(_wave_of(value.template).serialize(value.template, value.attempt_ids))
            continue
        wave = _WAVES.get(type(value))
        if wave is not None:
            parts.append(wave.serialize(value, (value.attempt_id,)))
            continue
        envelope = cluster_pb2.Envelope()
        encode_control_message(value, envelope.messages.add())
        parts.append(envelope.SerializeToString())
    return b"".join(parts)
