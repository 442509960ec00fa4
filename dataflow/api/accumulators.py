"""Values that a user's functions count up, and that the job's result has, summed over all subtasks.

An accumulator belongs to one operator of one attempt of a subtask: it starts empty with each attempt, so that what a
failed attempt had counted is not counted twice, and it is no state: a restart from a checkpoint counts from there on.
Mirrors Flink's Accumulator, LongCounter, DoubleCounter and Histogram; Python has one kind of whole number, so that
Flink's IntCounter is LongCounter. Values travel with heartbeats and with the end of a task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from snapline.dataflow.errors import JobDefinitionError

LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HistogramCount:
    """How often a value was added."""

    value: int
    count: int


@dataclass(frozen=True, slots=True)
class AccumulatorValue:
    """What one accumulator holds, as it travels."""

    name: str
    kind: str
    """The class of the accumulator: LongCounter, DoubleCounter or Histogram."""
    whole: int = 0
    real: float = 0.0
    counts: tuple[HistogramCount, ...] = ()


class JobAccumulator(ABC):
    """Counts up. Written by the thread of its task only."""

    @abstractmethod
    def add(self, value: Any) -> None:
        """Each value that a function adds changes what is held."""

    @property
    @abstractmethod
    def local_value(self) -> Any:
        """What this subtask has counted."""


def _whole(value: int) -> int:
    number = int(value)
    if number != value:
        raise ValueError(f"{value!r} is no whole number: a DoubleCounter takes others")
    return number


class LongCounter(JobAccumulator):
    """A whole number of 64 bits.

    >>> rejected = sl.LongCounter()
    >>> rejected.add(2)
    >>> rejected.local_value
    2
    """

    def __init__(self) -> None:
        self._value = 0

    def add(self, value: int = 1) -> None:
        """Count up, or down. Raises OverflowError beyond 64 bits, and ValueError for a number with a fraction."""
        total = self._value + _whole(value)
        if not -LARGEST - 1 <= total <= LARGEST:
            raise OverflowError(f"a LongCounter holds 64 bits, and {total} needs more: use a DoubleCounter")
        self._value = total

    @property
    def local_value(self) -> int:
        """What this subtask has counted."""
        return self._value


class DoubleCounter(JobAccumulator):
    """A floating-point number.

    >>> paid = sl.DoubleCounter()
    >>> paid.add(2.5)
    >>> paid.local_value
    2.5
    """

    def __init__(self) -> None:
        self._value = 0.0

    def add(self, value: float) -> None:
        """Add the value, which may be negative."""
        self._value += float(value)

    @property
    def local_value(self) -> float:
        """What this subtask has counted."""
        return self._value


class Histogram(JobAccumulator):
    """How often each whole number was added. For few different numbers: all of them travel with every heartbeat.

    >>> sizes = sl.Histogram()
    >>> sizes.add(3)
    >>> sizes.add(3)
    >>> sizes.local_value
    {3: 2}
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, value: int) -> None:
        """Count this number once. Raises OverflowError beyond 64 bits, and ValueError for a number with a fraction."""
        number = _whole(value)
        if not -LARGEST - 1 <= number <= LARGEST:
            raise OverflowError(f"a Histogram counts numbers of 64 bits, and {number} needs more")
        self._counts[number] = self._counts.get(number, 0) + 1

    @property
    def local_value(self) -> dict[int, int]:
        """How often this subtask has added each number, in their order."""
        return dict(sorted(self._counts.copy().items()))


AccumulatorT = TypeVar("AccumulatorT", bound=JobAccumulator)
KINDS: dict[str, type[JobAccumulator]] = {kind.__name__: kind for kind in (LongCounter, DoubleCounter, Histogram)}


class Accumulators:
    """Those of one operator in one attempt of a subtask."""

    def __init__(self) -> None:
        self._by_name: dict[str, JobAccumulator] = {}

    def add(self, name: str, accumulator: AccumulatorT) -> AccumulatorT:
        """Raises JobDefinitionError for a name that is taken or no text, or for what is no accumulator."""
        if not isinstance(name, str) or not name or any("\ud800" <= each <= "\udfff" for each in name):
            raise JobDefinitionError(f"{name!r} is no name of an accumulator: give it a text, such as 'rejected'")
        if not isinstance(accumulator, JobAccumulator) or type(accumulator).__name__ not in KINDS:
            raise JobDefinitionError(
                f"accumulator {name!r} is a {type(accumulator).__name__}: take one of {', '.join(KINDS)}"
            )
        if name in self._by_name:
            raise JobDefinitionError(
                f"accumulator {name!r} was added twice: give each a name of its own, or use get_accumulator"
            )
        self._by_name[name] = accumulator
        return accumulator

    def get(self, name: str) -> JobAccumulator:
        """Raises JobDefinitionError for a name that is not known."""
        if name not in self._by_name:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise JobDefinitionError(
                f"there is no accumulator {name!r} here (there are: {known}): call add_accumulator first"
            )
        return self._by_name[name]

    def travelling(self) -> tuple[AccumulatorValue, ...]:
        """What they hold now. From any thread."""
        return tuple(travelling(name, accumulator) for name, accumulator in list(self._by_name.items()))


def travelling(name: str, accumulator: JobAccumulator) -> AccumulatorValue:
    """What an accumulator holds now."""
    held, kind = accumulator.local_value, type(accumulator).__name__
    if isinstance(accumulator, Histogram):
        return AccumulatorValue(name, kind, counts=tuple(HistogramCount(value, count) for value, count in held.items()))
    if isinstance(accumulator, DoubleCounter):
        return AccumulatorValue(name, kind, real=held)
    return AccumulatorValue(name, kind, whole=held)


def results_of(values: Iterable[AccumulatorValue]) -> dict[str, Any]:
    """Return the sums over all subtasks and operators, by name. A name that stands for several kinds has its kind
    behind it. Kinds of a newer version are left out."""
    held: dict[tuple[str, str], list[AccumulatorValue]] = {}
    for value in values:
        if value.kind in KINDS:
            held.setdefault((value.name, value.kind), []).append(value)
    names = [name for name, _ in held]
    return {
        name if names.count(name) == 1 else f"{name} ({kind})": _sum_of(kind, parts)
        for (name, kind), parts in sorted(held.items())
    }


def _sum_of(kind: str, parts: list[AccumulatorValue]) -> Any:
    if kind == LongCounter.__name__:
        return sum(part.whole for part in parts)
    if kind == DoubleCounter.__name__:
        return sum(part.real for part in parts)
    counts: dict[int, int] = {}
    for part in parts:
        for entry in part.counts:
            counts[entry.value] = counts.get(entry.value, 0) + entry.count
    return dict(sorted(counts.items()))
