"""Connections on which nobody has been let in."""

from __future__ import annotations

from snapline.runtime.cores.newcomers import (
    MAX_BYTES,
    MAX_OF_ALL,
    MAX_OF_HOST,
    SECONDS,
    Newcomers,
    SeenConnection,
)


def test_who_is_not_let_in_goes_after_a_while() -> None:
    """Who is stays, as long as its connection does; another one from the same port is new."""
    newcomers = Newcomers()
    seen = {1: SeenConnection("a", 7, 0), 2: SeenConnection("a", 8, 0)}
    assert [] == newcomers.unwelcome(seen, 0.0)
    newcomers.let_in("a", 8)
    assert [] == newcomers.unwelcome(seen, SECONDS - 1)
    assert [1] == newcomers.unwelcome(seen, SECONDS)

    assert [] == newcomers.unwelcome({}, SECONDS + 1)
    assert [] == newcomers.unwelcome({2: SeenConnection("a", 8, 0)}, SECONDS + 2)
    assert [2] == newcomers.unwelcome({2: SeenConnection("a", 8, 0)}, SECONDS * 2 + 2)


def test_a_port_of_another_host_is_not_let_in() -> None:
    """Nor is one that was let in before anybody has looked at its connection lost."""
    newcomers = Newcomers()
    newcomers.let_in("a", 7)
    seen = {1: SeenConnection("a", 7, MAX_BYTES + 1), 2: SeenConnection("b", 7, MAX_BYTES + 1)}
    assert [2] == newcomers.unwelcome(seen, 0.0)


def test_who_says_much_before_it_is_let_in_goes_at_once() -> None:
    """Flight reads a message of a gigabyte before it asks for the token."""
    newcomers = Newcomers()
    seen = {1: SeenConnection("a", 1, MAX_BYTES), 2: SeenConnection("a", 2, MAX_BYTES + 1)}
    assert [2] == newcomers.unwelcome(seen, 0.0)


def test_newcomers_of_a_host_and_of_all_are_bounded() -> None:
    """The newest go first, whoever was let in does not count."""
    newcomers = Newcomers()
    old = {9000 + number: SeenConnection("a", number, 0) for number in range(MAX_OF_HOST)}
    assert [] == newcomers.unwelcome(old, 0.0)
    newcomers.let_in("a", 5_000)
    more = {8000: SeenConnection("a", 5_000, 0), 1: SeenConnection("a", 5_001, 0)}
    assert [1] == newcomers.unwelcome({**old, **more}, 1.0)

    many = {number: SeenConnection(f"host-{number}", 1, 0) for number in range(MAX_OF_ALL + 3)}
    assert [MAX_OF_ALL, MAX_OF_ALL + 1, MAX_OF_ALL + 2] == Newcomers().unwelcome(many, 0.0)
