"""Metrics of a user's functions: counters, gauges and histograms, which a job has while it runs.

They belong to one operator of one attempt of a subtask, travel with the heartbeats of its task, and are read at the
coordinator's `/metrics` and with `job.metrics()`. They are no state: each attempt starts at nothing, as counters of
Prometheus may. Mirrors Flink's MetricGroup, Counter, Gauge and Histogram; a histogram counts by bucket, so that those
of all subtasks can be added up.
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from snapline.dataflow.errors import JobDefinitionError

MOST_METRICS = 100
"""So many metrics the functions of one task may have: all of them travel with each of its heartbeats."""
MOST_BUCKETS = 64
DEFAULT_BUCKETS = tuple(digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5))
"""Upper bounds of a histogram's buckets, where a function gives none: 0.001, 0.002, 0.005, 0.01, ... 500,000."""
LATENCY = "latency"
"""Name of the histogram of latency markers, of which an operator has one for each source."""
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
KINDS = (COUNTER, GAUGE, HISTOGRAM)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class MetricValue:
    """What one metric of one subtask holds, as it travels."""

    operator_uid: str
    name: str
    kind: str
    """The kind of the metric: counter, gauge or histogram."""
    value: float = 0.0
    """The value of a counter or a gauge; the sum of what was put into a histogram."""
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    """How many values lie in each bucket of a histogram, up to its bound; one more, for those above all bounds."""
    source_uid: str = ""
    """Whose markers were measured, for a histogram of latency."""


MOST_COUNTED = (1 << 63) - 1
"""The most that a bucket says, of one subtask or of all: what a message has room for."""
MOST_AT_ONCE = 1e18
"""The most that a counter rises in one go, so that what it holds is a number that can be sent."""


class Counter:
    """A number that rises (Flink: Counter).

    >>> rejected = sl.Counter()
    >>> rejected.inc()
    >>> rejected.inc(2)
    >>> rejected.value
    3
    """

    def __init__(self) -> None:
        self._value: float = 0

    def inc(self, by: float = 1) -> None:
        """Count up. Raises ValueError for a negative number, since what may fall is a gauge, and for one that is none
        or endless."""
        if not 0 <= by <= MOST_AT_ONCE:
            what = "is negative: use a gauge" if by < 0 else f"is no number up to {MOST_AT_ONCE:.0e}"
            raise ValueError(f"a counter only rises, and {by!r} {what}"[:200])
        self._value += by if type(by) is int else float(by)  # numbers of NumPy wrap around

    @property
    def value(self) -> float:
        """What this subtask has counted."""
        return self._value


class Gauge:
    """A number as it is now: set by the function, or read from a function of no arguments when it is asked for
    (Flink: Gauge).

    >>> waiting = sl.Gauge()
    >>> waiting.set(7)
    >>> waiting.value
    7.0
    >>> sl.Gauge(lambda: 40 + 2).value
    42.0
    """

    def __init__(self, read: Callable[[], float] | None = None) -> None:
        self._read = read
        self.last: float = 0.0 if read is None else float("nan")
        """What was set, or told when the function was last asked."""

    def set(self, value: float) -> None:
        """Say what the number is now. Raises ValueError when a function says it."""
        if self._read is not None:
            raise ValueError("this gauge reads its value from a function: it cannot be set, too")
        self.last = float(value)

    @property
    def value(self) -> float:
        """The number now; not a number where its function fails. Heartbeats ask for it from a thread of their own."""
        if self._read is not None:
            try:
                self.last = float(self._read())
            except KeyboardInterrupt:
                raise
            except BaseException:  # a figure ends no job, also where it calls sys.exit() or Polars panics
                self.last = float("nan")
        return self.last


class BucketHistogram:
    """How many values lie in each of its buckets (Flink: Histogram; Prometheus: histogram).

    >>> sizes = sl.BucketHistogram([1, 10, 100])
    >>> for size in (3, 4, 500):
    ...     sizes.update(size)
    >>> sizes.count, sizes.sum, sizes.counts
    (3, 507.0, (0, 2, 0, 1))
    """

    def __init__(self, buckets: Sequence[float] = DEFAULT_BUCKETS) -> None:
        """Raises JobDefinitionError for bounds that do not rise."""
        bounds = tuple(float(bound) for bound in buckets)
        rises = all(low < high for low, high in pairwise(bounds))
        if not bounds or len(bounds) > MOST_BUCKETS or not rises:
            raise JobDefinitionError(
                f"buckets of a histogram are 1 to {MOST_BUCKETS} numbers that rise, such as [1, 10, 100], got {buckets!r}"
            )
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def update(self, value: float) -> None:
        """Put a value into its bucket."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self._sum += float(value)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return how many values lie in each bucket, and above all bounds."""
        return tuple(self._counts)

    @property
    def count(self) -> int:
        """How many values were put in."""
        return sum(self._counts)

    @property
    def sum(self) -> float:
        """The sum of the values that were put in."""
        return self._sum


Metric = Counter | Gauge | BucketHistogram
MetricT = TypeVar("MetricT", Counter, Gauge, BucketHistogram)


class MetricLimit:
    """How many more metrics the functions of one task may have."""

    def __init__(self, most: int = MOST_METRICS) -> None:
        self._most = most
        self._taken = 0
        self._warned = False

    def take(self, operator_uid: str, name: str) -> bool:
        """Whether there is room for one more. Warns once when there is none."""
        if self._taken < self._most:
            self._taken += 1
            return True
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"metric {name!r} of operator {operator_uid!r} is not reported, and no further one of this task: a task has "
                f"{self._most} metrics at most. Do not make their names of data",
                stacklevel=4,
            )
        return False


class MetricGroup:
    """Metrics of one operator in one attempt of a subtask: `context.metrics` (Flink: MetricGroup). A name that was
    registered already gives the metric that was registered.

    >>> class Parse(sl.Function):
    ...     def open(self, context: sl.RuntimeContext):
    ...         self.bad = context.metrics.counter("bad_rows")
    ...         self.waiting = context.metrics.gauge("waiting")
    ...         self.sizes = context.metrics.histogram("batch_rows", buckets=[10, 100, 1_000])
    ...     def __call__(self, batch):
    ...         self.sizes.update(batch.num_rows)
    ...         self.waiting.set(0)
    ...         self.bad.inc(batch["coupon"].null_count)
    ...         return batch
    >>> _ = orders.map_batches(Parse(), uid="parse")
    """

    def __init__(self, operator_uid: str, limit: MetricLimit | None = None) -> None:
        """Functions get theirs from their context."""
        self._operator_uid = operator_uid
        self._limit = limit or MetricLimit()
        self._metrics: dict[str, Metric] = {}
        self.told: list[Gauge] = []
        """The gauges that functions tell."""

    def counter(self, name: str) -> Counter:
        """A number that rises. Raises JobDefinitionError for a name that is no word, or that another kind has."""
        return self._registered(name, Counter())

    def gauge(self, name: str, read: Callable[[], float] | None = None) -> Gauge:
        """A number as it is now, that is set or that `read()` tells."""
        gauge = self._registered(name, Gauge(read))
        if read is not None and gauge is self._metrics.get(name) and gauge not in self.told:
            self.told.append(gauge)
        return gauge

    def histogram(self, name: str, buckets: Sequence[float] = DEFAULT_BUCKETS) -> BucketHistogram:
        """Numbers by bucket. `buckets` are the upper bounds."""
        return self._registered(name, BucketHistogram(buckets))

    def _registered(self, name: str, metric: MetricT) -> MetricT:
        if not isinstance(name, str) or not _NAME.match(name):
            raise JobDefinitionError(
                f"operator {self._operator_uid!r}: {name!r} is no name of a metric: letters, digits and _, such as 'bad_rows'"
            )
        known = self._metrics.get(name)
        if known is None:
            if self._limit.take(self._operator_uid, name):
                self._metrics[name] = metric
            return metric
        if type(known) is not type(metric):
            raise JobDefinitionError(
                f"operator {self._operator_uid!r}: metric {name!r} is a {type(known).__name__} already: give the "
                f"{type(metric).__name__} another name"
            )
        return known

    def travelling(self) -> tuple[MetricValue, ...]:
        """What they hold now; of a gauge that a function tells, what it has told last. From any thread.

        >>> group = sl.MetricGroup("parse")
        >>> group.counter("bad_rows").inc(3)
        >>> [(value.name, value.value) for value in group.travelling()]
        [('bad_rows', 3.0)]
        """
        return tuple(value_of(self._operator_uid, name, metric) for name, metric in list(self._metrics.items()))


def value_of(operator_uid: str, name: str, metric: Metric, source_uid: str = "") -> MetricValue:
    """What a metric holds now."""
    if isinstance(metric, BucketHistogram):
        return MetricValue(operator_uid, name, HISTOGRAM, metric.sum, metric.bounds, metric.counts, source_uid)
    if isinstance(metric, Gauge):
        return MetricValue(operator_uid, name, GAUGE, metric.last, source_uid=source_uid)
    return MetricValue(operator_uid, name, COUNTER, float(metric.value), source_uid=source_uid)


def is_sound(value: MetricValue) -> bool:
    """Whether the value is of a kind that is known, with as many counts as it needs, none of which is negative."""
    if value.kind == HISTOGRAM:
        return len(value.counts) == len(value.bounds) + 1 <= MOST_BUCKETS + 1 and min(value.counts) >= 0
    return value.kind in KINDS


def added_up(values: Iterable[MetricValue]) -> list[MetricValue]:
    """Return the sums over all subtasks: one value for a counter or a histogram, and all of a gauge, which has no sum.
    Histograms of other buckets than the first one are left out."""
    held: dict[tuple[str, str, str, str], list[MetricValue]] = {}
    for value in values:
        if is_sound(value):
            held.setdefault((value.operator_uid, value.name, value.kind, value.source_uid), []).append(value)
    found: list[MetricValue] = []
    for parts in held.values():
        if parts[0].kind == GAUGE:
            found += parts
            continue
        alike = [part for part in parts if part.bounds == parts[0].bounds]
        columns = zip(*(part.counts for part in alike), strict=True)
        counts = tuple(min(MOST_COUNTED, sum(column)) for column in columns)
        found.append(replace(parts[0], value=sum(part.value for part in alike), counts=counts))
    return found


def quantile(value: MetricValue, share: float) -> float:
    """The value below which this share of a histogram lies: a straight line within a bucket, the greatest bound for
    what lies above it; not a number when it is empty."""
    total = sum(value.counts)
    if not total:
        return float("nan")
    wanted, before, low = share * total, 0, min(0.0, value.bounds[0])
    for bound, count in zip(value.bounds, value.counts, strict=False):
        if count and before + count >= wanted:
            return low + (bound - low) * max(0.0, wanted - before) / count
        before, low = before + count, bound
    return value.bounds[-1]


def summary(value: MetricValue) -> dict[str, float]:
    """Return what people want to know of a histogram: count, mean and quantiles."""
    count = sum(value.counts)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    figures = {name: quantile(value, share) for name, share in shares.items()}
    return {"count": count, "mean": value.value / count if count else float("nan"), **figures}


def by_operator(values: Iterable[MetricValue]) -> Mapping[str, Mapping[str, Any]]:
    """Operator uid -> name -> a number for a counter, a list with a number of each subtask for a gauge, and a summary
    for a histogram; latencies are under `latency from SOURCE`."""
    found: dict[str, dict[str, Any]] = {}
    for value in values:
        named = found.setdefault(value.operator_uid, {})
        name = f"{value.name} from {value.source_uid}" if value.source_uid else value.name
        if value.kind == HISTOGRAM:
            named[name] = summary(value)
        elif value.kind == GAUGE:
            named.setdefault(name, []).append(value.value)
        else:
            named[name] = int(value.value) if value.value.is_integer() else value.value
    return found
