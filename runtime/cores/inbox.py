"""What one actor is told, as events for its core: one by one, or together where the core takes a kind of message
together.

Decides order (that of arrival) and what is one event: neighbours of one kind, of one envelope or of many, from whatever
connections, when the core takes that kind together; a checkpoint of ten thousand tasks is ten thousand
acknowledgements. It does not know streams, threads or actors: those say `Incoming` for an envelope and `Events` for
several things at once, as they came. Flink has no such thing: there every message of the RPC is a call of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.messages import Fenced
from snapline.runtime.cores.connections import ConnectionID, MessageReceived, MessagesReceived, TogetherReceived


@dataclass(frozen=True, slots=True)
class Events:
    """Several events (or envelopes that came in) in one message; performed effects leave together."""

    events: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Incoming:
    """An envelope that came in: its messages, in order."""

    connection: ConnectionID
    session: LeaderSessionID
    messages: list[Any]


class Inbox:
    """The one place where what came in is put together for a core."""

    def __init__(self, taken_together: frozenset[type] = frozenset()) -> None:
        """`taken_together`: kinds of messages that the core takes as TogetherReceived."""
        self._taken_together = taken_together

    def events(self, told: Any) -> Iterator[Any]:
        """The core's events for what the actor was told, in order."""
        parts: list[MessagesReceived] = []
        together: type | None = None
        for each in _flat(told):
            if type(each) is not Incoming:
                if parts:
                    yield TogetherReceived(tuple(parts))
                    parts = []
                yield each
                continue
            for kind, run in _runs(each.messages):
                if parts and kind is not together:
                    yield TogetherReceived(tuple(parts))
                    parts = []
                if kind in self._taken_together:
                    together = kind
                    parts.append(MessagesReceived(each.connection, each.session, tuple(run)))
                    continue
                for message in run:
                    yield MessageReceived(each.connection, Fenced(each.session, message))
        if parts:
            yield TogetherReceived(tuple(parts))


def _flat(told: Any) -> Iterable[Any]:
    """What was told as one, one by one."""
    if type(told) is not Events:
        return (told,)
    if Events not in map(type, told.events):
        return told.events
    return [each for part in told.events for each in _flat(part)]


def _runs(messages: list[Any]) -> Iterable[tuple[type, Iterable[Any]]]:
    """Neighbours of one kind. Most envelopes have only one, which is found much faster."""
    if len(messages) == 1:
        return ((type(messages[0]), messages),)
    kinds = set(map(type, messages))
    return ((kinds.pop(), messages),) if len(kinds) == 1 else groupby(messages, type)
