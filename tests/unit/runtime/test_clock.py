"""The clock of a process beside a wall clock that is set, leaps or goes wrong."""

from __future__ import annotations

from snapline.runtime.clock import SystemClock

SECOND_NS = 1_000_000_000


class Machine:
    """A machine's two clocks, moved by hand."""

    def __init__(self) -> None:
        self.monotonic_ns = 5 * SECOND_NS
        self.wall_ns = 1_000_000 * SECOND_NS
        self.clock = SystemClock(lambda: self.wall_ns, lambda: self.monotonic_ns)

    def passes(self, ms: int, *, wall_ms: int | None = None) -> None:
        """So much time passes, and the wall clock says that it was `wall_ms`."""
        self.monotonic_ns += ms * 1_000_000
        self.wall_ns += (ms if wall_ms is None else wall_ms) * 1_000_000

    @property
    def is_off_by_ms(self) -> int:
        return self.clock.now_ms() - self.wall_ns // 1_000_000


def test_a_wall_clock_that_is_set_right_again_and_again_is_followed() -> None:
    """A virtual machine counted five milliseconds too few in each second, and its host moved the wall clock on: after
    20 seconds the time of a process was 100 ms behind, and after a day seven minutes."""
    machine = Machine()
    for _ in range(1_000):
        machine.passes(100, wall_ms=101)
        assert abs(machine.is_off_by_ms) <= 6


def test_a_machine_that_slept_is_told_the_right_time_after_as_long_again() -> None:
    """Time runs at twice its pace until then, so that no timeout of seconds is over at once."""
    machine = Machine()
    machine.passes(0, wall_ms=60_000)
    assert machine.is_off_by_ms == -60_000
    before_ms = machine.clock.now_ms()
    for _ in range(300):
        machine.passes(100)
        assert machine.clock.now_ms() - before_ms in range(100, 201)
        before_ms = machine.clock.now_ms()
    assert machine.is_off_by_ms == -30_000
    for _ in range(300):
        machine.passes(100)
        machine.clock.now_ms()
    assert abs(machine.is_off_by_ms) <= 5


def test_time_never_goes_back() -> None:
    """A wall clock that is put back by a minute is met at half the pace."""
    machine = Machine()
    machine.passes(0, wall_ms=-60_000)
    before_ms = machine.clock.now_ms()
    for _ in range(13_000):
        machine.passes(10)
        now_ms = machine.clock.now_ms()
        assert before_ms <= now_ms <= before_ms + 11
        before_ms = now_ms
    assert abs(machine.is_off_by_ms) <= 5


def test_what_the_clocks_differ_by_for_a_moment_is_ignored() -> None:
    """Two clocks are never read at the same time."""
    machine = Machine()
    for moved_ms in (3, -3, 4, -4) * 50:
        machine.passes(100, wall_ms=100 + moved_ms)
        expected_ms = 1_000_000_000 + (machine.monotonic_ns - 5 * SECOND_NS) // 1_000_000
        assert machine.clock.now_ms() == expected_ms


def test_seconds_until_is_exact_to_less_than_a_millisecond() -> None:
    """A task waits for it."""
    machine = Machine()
    machine.monotonic_ns += 250_000
    machine.wall_ns += 250_000
    assert machine.clock.seconds_until(1_000_000_001) == 0.00075
