"""What the golden job has to put out, from its rows alone: dictionaries and loops, no windows, watermarks or
batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from snapline.connectors.builtin.generator import GeneratedSplit, GeneratorSource
from tests.golden.forms import (
    BUCKET_MS,
    FEW_LEFT,
    FEW_RIGHT,
    GAP_MS,
    LATE_EVERY,
    LATE_MS,
    PUSHED,
    composite_key,
    even_ones_twice,
    no_multiple_of_three,
)
from tests.golden.job import (
    COUNT,
    NAMES,
    NEAR_MS,
    PAUSE_ROWS,
    RULES,
    SLIDE_MS,
    left_source,
    right_source,
    to_ms,
)
from tests.golden.verbs import verbs_expected

Rows = list[tuple[int, int, int]]
"""(key, value, time in milliseconds)."""


def rows_of(source: GeneratorSource) -> Rows:
    """All rows of a source."""
    found: Rows = []
    for split in source.enumerate_splits():
        generated = GeneratedSplit(source, split)
        count = generated.remaining or 0
        keys, values, times = generated.columns(count, np.empty(source.batch_rows, np.uint64))
        times_ms = times.cast(pa.timestamp("ms")).cast(pa.int64())
        found += zip(keys.to_pylist(), values.to_pylist(), times_ms.to_pylist(), strict=True)
    return sorted(found, key=lambda row: (row[2], row[0]))


def grouped(
    rows: Iterable[tuple[int, int, int]], window_of: Callable[[int], Iterable[int]]
) -> dict[tuple[int, int], list[int]]:
    """Values by key and window."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for key, value, time in rows:
        for window in window_of(time):
            found[key, window].append(value)
    return found


def sessions_of(rows: Rows) -> list[list[tuple[int, int, int]]]:
    """Rows of one key whose times are less than the gap apart."""
    found: list[list[tuple[int, int, int]]] = []
    last: dict[int, list[tuple[int, int, int]]] = {}
    for row in rows:
        current = last.get(row[0])
        if current is None or row[2] - current[-1][2] >= GAP_MS:
            current = last[row[0]] = []
            found.append(current)
        current.append(row)
    return found


def expected() -> dict[str, Counter[tuple[Any, ...]]]:
    """By branch, the rows, columns in the order of their names."""
    left, right = rows_of(left_source()), rows_of(right_source())
    buckets = grouped(left, lambda t: [t // BUCKET_MS])
    sliding = grouped(left, lambda t: (t // SLIDE_MS - 1, t // SLIDE_MS))
    per_key = Counter(key for key, _, _ in left)
    joined_per_key = Counter(key for key, _, _ in [*left, *right])
    names = dict(zip(NAMES["id"].to_pylist(), NAMES["name"].to_pylist(), strict=True))
    factors = {rule["rule_key"]: rule["factor"] for rule in RULES}
    paused = [row for row in left if row[1] // PAUSE_ROWS % 2 == 0]
    both: dict[tuple[int, int], int] = defaultdict(int)
    for key, value, time in left:
        both[key, time // BUCKET_MS] += value
    for key, value, time in right:
        both[key, time // BUCKET_MS] -= value
    found: dict[str, Iterable[dict[str, Any]]] = {
        "tumbling": (
            {"k": k, **window(b * BUCKET_MS, BUCKET_MS), "n": len(v), "total": sum(v), "low": min(v), "high": max(v)}
            for (k, b), v in buckets.items()
        ),
        "sliding": (
            {"k": k, **window(w * SLIDE_MS, 2 * SLIDE_MS), "n": len(v), "total": sum(v)}
            for (k, w), v in sliding.items()
        ),
        "sessions": (
            {
                "k": s[0][0],
                "window_start": s[0][2],
                "window_end": s[-1][2] + GAP_MS,
                "n": len(s),
                "total": sum(r[1] for r in s),
            }
            for s in sessions_of(paused)
        ),
        "window-process": ({"k": k, "bucket": b, "total": max(v) - min(v)} for (k, b), v in buckets.items()),
        "reduce": (
            {"k": k, "v": v, "t": t, **window(t // BUCKET_MS * BUCKET_MS, BUCKET_MS)}
            for k, v, t in left
            if v == max(buckets[k, t // BUCKET_MS])
        ),
        "max-by": (
            {"k": k, "v": v, "t": t, **window(t // BUCKET_MS * BUCKET_MS, BUCKET_MS)}
            for k, v, t in left
            if v == max(buckets[k, t // BUCKET_MS])
        ),
        "min-by": (
            {"k": k, "v": v, "t": t, "window_start": s[0][2], "window_end": s[-1][2] + GAP_MS}
            for s in sessions_of(paused)
            for k, v, t in s
            if v == min(r[1] for r in s)
        ),
        "count-windows": ({"k": k, "n": COUNT} for k, n in per_key.items() for _ in range(n // COUNT)),
        "triggered": ({"k": k, "n": COUNT * (i + 1)} for k, n in per_key.items() for i in range(n // COUNT)),
        "running": ({"k": k, "n": i + 1} for k, n in per_key.items() for i in range(n)),
        "process": ({"k": k, "bucket": b, "total": sum(v)} for (k, b), v in buckets.items()),
        "states": ({"k": k, "n": i + 1} for k, n in per_key.items() for i in range(n)),
        "batches": ({"k": k, "bucket": b, "total": len(v)} for (k, b), v in buckets.items()),
        "connect": ({"k": k, "bucket": b, "total": total} for (k, b), total in both.items()),
        "broadcast": ({"k": k, "v": v * factors[k]} for k, v, _ in left),
        "window-join": full_join(left, right, lambda t: t // 100),
        "interval-join": (
            pair(one, other)
            for one in left
            for other in near(right, one[2])
            if one[0] == other[0] and -NEAR_MS <= other[2] - one[2] <= NEAR_MS
        ),
        "temporal-join": (pair(one, latest(right, one)) for one in left),
        "expressions": ({"k": k, "t": t, "kind": "much" if 2 * v > 9 else "little"} for k, v, t in left if v % 3 == 0),
        "enrich": ({"k": k, "v": v, "t": t, "name": names[k]} for k, v, t in left if k in names),
        "union": ({"k": k, "n": i + 1} for k, n in joined_per_key.items() for i in range(n)),
        "even": ({"k": k, "v": v} for k, v, _ in left if v % 2 == 0),
        "odd": ({"k": k, "v": v} for k, v, _ in left if v % 2 == 1),
        "async-ordered": ({"k": k, "v": 2 * v} for k, v, _ in left),
        "async-unordered": ({"k": k, "v": 2 * v} for k, v, _ in left),
        **verbs_expected(left),
        **more_expected(left, right, paused, names),
    }
    return {name: Counter(_flat(row) for row in rows) for name, rows in found.items()}


def more_expected(left: Rows, right: Rows, paused: Rows, names: dict[int, str]) -> dict[str, Iterable[dict[str, Any]]]:
    """The branches of `tests.golden.forms` that put out the same in every run."""
    per_key = Counter(key for key, _, _ in left)
    by_composite: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for key, value, time in left:
        by_composite[*composite_key(key), time // BUCKET_MS].append(value)
    both: dict[int, list[int]] = defaultdict(list)
    for sign, rows in ((1, left), (-1, right)):
        for key, value, _ in rows:
            both[key].append(sign * value)
    mapped = [{"k": k, "v": v + 1} for k, v, _ in left]
    repeated = [row for one in mapped for row in even_ones_twice(one) if no_multiple_of_three(row)]
    few_left, few_right = [r for r in left if r[1] < FEW_LEFT], [r for r in right if r[1] < FEW_RIGHT]
    return {
        "rows": ({"k": row["k"], "v": -row["v"], "name": names.get(row["k"])} for row in repeated),
        "pushed": ({"k": i % 7, "v": i} for i in range(PUSHED)),
        "ruled": ({"k": k, "v": v} for k, v, _ in left),
        "everywhere": ({"k": k, "v": v} for k, v, _ in left),
        "composite": (
            {
                "s": s,
                "d": d // 1000,
                "c": c,
                **window(b * BUCKET_MS, BUCKET_MS),
                "n": len(v),
                "average": sum(v) / len(v),
            }
            for (s, d, c, b), v in by_composite.items()
        ),
        "window-batches": (
            {"k": s[0][0], "start": s[0][2], "total": sum(r[1] for r in s)} for s in sessions_of(paused)
        ),
        "co-batches": ({"k": k, "n": len(v), "total": sum(v)} for k, v in both.items()),
        "connect-plain": [{"k": k, "v": v} for k, v, _ in left] + [{"k": k, "v": -v} for k, v, _ in right],
        "unbounded-join": (pair(one, other) for one in few_left for other in few_right if one[0] == other[0]),
        "four-times": ({"k": k, "n": i + 1} for k, n in per_key.items() for i in range(n)),
        "by-function": (
            {"of": k, "odd": odd, "n": i + 1}
            for (k, odd), n in Counter((k, v % 2 == 1) for k, v, _ in left).items()
            for i in range(n)
        ),
        "tenth": ({"k": k, "n": i + 1} for k, n in per_key.items() for i in range(9, n, 10)),
    }


def per_key() -> Counter[int]:
    """Rows of the left stream."""
    return Counter(key for key, _, _ in rows_of(left_source()))


def retimed_windows() -> dict[tuple[int, int], int]:
    """Rows by key and start of the window, when all that are late are taken in."""
    rows = [(k, v, t - LATE_MS * (v % LATE_EVERY == 0)) for k, v, t in rows_of(left_source())]
    return {(k, b * BUCKET_MS): len(v) for (k, b), v in grouped(rows, lambda t: [t // BUCKET_MS]).items()}


def window(start_ms: int, size_ms: int) -> dict[str, int]:
    """Its two columns."""
    return {"window_start": start_ms, "window_end": start_ms + size_ms}


def pair(left: tuple[int, int, int] | None, right: tuple[int, int, int] | None) -> dict[str, Any]:
    """A row of a join."""
    k, v, t = left or (None, None, None)
    rk, rv, rt = right or (None, None, None)
    return {"k": k, "v": v, "t": t, "rk": rk, "rv": rv, "t_right": rt}


def near(rows: Rows, time: int) -> Rows:
    """Of the right stream, whose rows are evenly spaced: those about this time."""
    step = rows[1][2] - rows[0][2]
    middle = time // step
    reach = NEAR_MS // step + 2
    return rows[max(0, middle - reach) : middle + reach]


def latest(rows: Rows, of: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """The last row of the key at its time."""
    step = rows[1][2] - rows[0][2]
    for index in range(min(of[2] // step, len(rows) - 1), -1, -1):
        if rows[index][0] == of[0]:
            return rows[index]
    return None


def full_join(left: Rows, right: Rows, window_of: Callable[[int], int]) -> Iterable[dict[str, Any]]:
    """Pairs of one key in one window, and what has no partner."""
    by_window: dict[tuple[int, int], tuple[Rows, Rows]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((left, right)):
        for row in rows:
            by_window[row[0], window_of(row[2])][side].append(row)
    for ours, theirs in by_window.values():
        yield from (pair(one, other) for one in ours or [None] for other in theirs or [None])  # type: ignore[list-item]


def _flat(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in sorted(row))


def committed_rows(output: Path, name: str) -> Iterable[dict[str, Any]]:
    """What a branch has put out; times in milliseconds."""
    dataset = ds.dataset(output / name, format="parquet")
    for batch in dataset.to_batches() if dataset.files else ():
        for row in batch.to_pylist():
            yield {column: _plain(v) for column, v in row.items()}


def _plain(value: Any) -> Any:
    """Times in milliseconds, and lists as something that can be counted."""
    if isinstance(value, list):
        return tuple(value)
    return to_ms(value) if hasattr(value, "tzinfo") else value


def committed(output: Path, name: str) -> Counter[tuple[Any, ...]]:
    """The same, columns in the order of their names, and how often."""
    return Counter(_flat(row) for row in committed_rows(output, name))
