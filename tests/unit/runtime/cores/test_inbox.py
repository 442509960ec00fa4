"""Inbox: what an actor is told becomes events in order, together where the core takes a kind together."""

from __future__ import annotations

from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.messages import Disconnect, Fenced, ShutDownTaskExecutor
from snapline.runtime.cores.connections import (
    ConnectionID,
    ConnectionLost,
    MessageReceived,
    MessagesReceived,
    TogetherReceived,
)
from snapline.runtime.cores.inbox import Events, Inbox, Incoming

ONE, TWO = ConnectionID("one"), ConnectionID("two")
SESSION = LeaderSessionID("session")
SHUT, GONE = ShutDownTaskExecutor("idle"), Disconnect("bye")
INBOX = Inbox(frozenset({ShutDownTaskExecutor}))


def test_what_came_on_several_connections_is_one_event_as_long_as_it_stands_together() -> None:
    """The loss of a connection keeps its place between the messages before and after it."""
    lost = ConnectionLost(ONE, "reset")
    told = Events((Incoming(ONE, SESSION, [SHUT, SHUT]), Events((Incoming(TWO, SESSION, [SHUT]), lost))))

    both = (MessagesReceived(ONE, SESSION, (SHUT, SHUT)), MessagesReceived(TWO, SESSION, (SHUT,)))
    assert list(INBOX.events(told)) == [TogetherReceived(both), lost]


def test_other_messages_come_one_by_one_in_their_place() -> None:
    """Also in the middle of an envelope."""
    part = TogetherReceived((MessagesReceived(ONE, SESSION, (SHUT,)),))

    assert list(INBOX.events(Incoming(ONE, SESSION, [SHUT, GONE, SHUT]))) == [
        part,
        MessageReceived(ONE, Fenced(SESSION, GONE)),
        part,
    ]


def test_anything_else_is_an_event_as_it_is() -> None:
    """And an empty envelope is none."""
    assert list(INBOX.events(GONE)) == [GONE]
    assert list(INBOX.events(Incoming(ONE, SESSION, []))) == []
