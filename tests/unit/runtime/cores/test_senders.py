"""What one sender may take of a server, and how often its mistakes are told."""

from __future__ import annotations

import pytest

from snapline.runtime.cores.senders import (
    MAX_SENDERS,
    MAX_STREAMS,
    RefusedSenders,
    StreamsBySender,
    host_of,
    surplus_connections,
)


def test_a_sender_is_told_of_once_a_second() -> None:
    """With the number of those in between; others are told of at once."""
    refused = RefusedSenders()

    assert [0, None, None, 0] == [refused.note(who, now) for who, now in (("a", 5), ("a", 5.5), ("a", 5.9), ("b", 5.9))]
    assert [2, None, 1] == [refused.note("a", now) for now in (6.1, 6.2, 7.2)]


def test_so_many_are_told_at_once_before_there_is_a_pause() -> None:
    """Streams of one sender that come and go are told of a hundred times at once, and then once a second."""
    streams = RefusedSenders(at_once=3)

    assert [0, 0, 0, None, None] == [streams.note("a", now) for now in (5, 5, 5, 5, 5.9)]
    assert [2, None, 1] == [streams.note("a", now) for now in (6.1, 6.2, 7.1)]
    assert [0, 0, 0, None] == [streams.note("a", 60) for _ in range(4)]


def test_senders_that_draw_names_are_not_kept() -> None:
    """The latest thousand are."""
    refused = RefusedSenders()
    for number in range(MAX_SENDERS + 5):
        refused.note(str(number), 1.0)

    assert MAX_SENDERS == len(refused._told)
    assert (0, None) == (refused.note("0", 1.1), refused.note(str(MAX_SENDERS), 1.1))


def test_a_sender_has_so_many_streams_at_a_time() -> None:
    """Others have theirs, and one that ends makes room."""
    streams = StreamsBySender()
    assert all(streams.open("a") for _ in range(MAX_STREAMS))
    assert (False, True) == (streams.open("a"), streams.open("b"))

    streams.close("a")
    assert streams.open("a")


def test_the_newest_connections_of_a_host_are_too_many() -> None:
    """Those that were there before stay, and other hosts are not concerned."""
    hosts = {1: "a", 2: "a", 3: "a", 4: "b", 9: "a"}

    assert [1, 3] == surplus_connections(hosts, {2, 9}, 2)
    assert [] == surplus_connections(hosts, {2, 9}, 4)


@pytest.mark.parametrize(
    ("peer", "host"), [("ipv4:10.0.0.7:4711", "10.0.0.7"), ("ipv6:%5B::1%5D:80", "%5B::1%5D"), ("unix:/x", "unix:/x")]
)
def test_a_host_is_known_by_its_address(peer: str, host: str) -> None:
    """Whatever its port."""
    assert host == host_of(peer)
