"""Committed output equals the reference: exactly once, or at least once where the job asks for no more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from snapline.testing.simulated.world import Violation
from tests.simulation.job_plan import (
    JOINS,
    LATE,
    SLIDES,
    TUMBLING,
    WINDOWED,
    JobPlan,
    joined,
    rows_before_keyed,
    sessions,
    side_rows,
    source_rows,
    timers,
    windows,
)
from tests.simulation.workload import Ledger, SimulatedRow

SHOWN = 5


@dataclass(frozen=True)
class Asked:
    """What is asked of the output. True: exactly once."""

    exact: bool
    missing: bool = True
    """Whether everything has to be there; always, for exactly once."""
    impossible: bool = True
    """Whether nothing else may be there; the same."""

    def __bool__(self) -> bool:
        return self.exact

    def unless(self, tolerant: bool) -> Asked:
        """The same, but at least once."""
        return replace(self, exact=False) if tolerant else self


def check_output(plan: JobPlan, ledger: Ledger, *, exact: bool, whole: JobPlan | None = None) -> None:
    """`whole`: the job as if it had not been drained. With at least once, state and output may be ahead of where its
    sources were drained: what followed a barrier before the others came is in its checkpoint, too, and a job that was
    restored from it need not have read that again. Raises Violation."""
    if exact or whole is None:
        _check(plan, ledger, Asked(exact))
        return
    _check(plan, ledger, Asked(exact=False, impossible=False))
    _check(whole, ledger, Asked(exact=False, missing=False))


def _check(plan: JobPlan, ledger: Ledger, exact: Asked) -> None:
    if plan.side_parallelism:
        _compare("side sink", ledger.committed_rows("side"), side_rows(rows_before_keyed(plan)), exact=exact)
    if plan.raw_branch:
        _compare("raw sink", ledger.committed_rows("raw"), source_rows(plan, 0), exact=exact)
    got = ledger.committed_rows("main")
    if plan.keyed in WINDOWED and plan.has_late_rows:
        _with_late_rows(plan, got, ledger.committed_rows(LATE), exact)
        return
    _MAIN[plan.keyed](plan, got, exact)


def _compare(what: str, got: Iterable[SimulatedRow], expected: Iterable[SimulatedRow], *, exact: Asked) -> None:
    have, want = Counter(got), Counter(expected)
    missing, extra = want - have, have - want
    if missing and exact.missing:
        raise Violation(f"{what}: {missing.total()} of {want.total()} rows are missing, such as {_some(missing)}")
    if exact and extra:
        raise Violation(f"{what}: {extra.total()} rows too many, such as {_some(extra)}")
    if exact.impossible and any(row not in want for row in extra):
        raise Violation(f"{what}: rows that cannot be, such as {_some(row for row in extra if row not in want)}")


def _some(rows: Iterable[SimulatedRow]) -> list[SimulatedRow]:
    return sorted(rows)[:SHOWN]


def _stateless(plan: JobPlan, got: list[SimulatedRow], exact: Asked) -> None:
    _compare("sink", got, rows_before_keyed(plan), exact=exact)


def _running(plan: JobPlan, got: list[SimulatedRow], exact: Asked) -> None:
    """(k, s, i, n, total)"""
    expected = rows_before_keyed(plan)
    _compare("sink", [row[:3] for row in got], [(k, s, i) for s, i, k, _, _ in expected], exact=exact)
    if not exact:
        return
    by_key: dict[int, list[SimulatedRow]] = defaultdict(list)
    value = {(s, i): v for s, i, _, v, _ in expected}
    for row in got:
        by_key[row[0]].append(row)
    for key, rows in by_key.items():
        rows.sort(key=lambda row: row[3])
        total = 0
        for number, (_, s, i, n, sum_so_far) in enumerate(rows, start=1):
            total += value[s, i]
            if n != number or sum_so_far != total:
                raise Violation(
                    f"running aggregate of key {key}: row {number} says n={n}, total={sum_so_far}; expected total {total}: "
                    f"{rows[max(0, number - 3) : number + 2]}"
                )
    if plan.keeps_key_order:
        _check_order((row[0], row[2]) for row in sorted(got, key=lambda row: (row[0], row[3])))


def _process(plan: JobPlan, got: list[SimulatedRow], exact: Asked) -> None:
    """(kind, k, n, s, i)"""
    expected = rows_before_keyed(plan)
    _numbered([row for row in got if row[0] == 0], expected, plan, exact=exact)
    fired = [(k, at) for kind, k, at, _, _ in got if kind == 1]
    # A late row sets a timer for a time that is over, which fires once more.
    _compare("timers", fired, timers(expected, plan.bucket_ms), exact=exact.unless(plan.has_late_rows))
    late = [row for row in got if row[0] == 3]
    if late:
        raise Violation(
            f"timers by the clock: {len(late)} rows waited for a second batch after their timers were due, such as {_some(late)}"
        )
    if plan.repeat_ms:
        repeated = [(k, s, i) for kind, k, _, s, i in got if kind == 2]
        _compare("repeated rows", repeated, [(k, s, i) for s, i, k, _, _ in expected], exact=exact)


def _numbered(rows: list[SimulatedRow], expected: list[SimulatedRow], plan: JobPlan, *, exact: Asked) -> None:
    """(kind, k, n, s, i): every row, and those of a key have the numbers from 1 on."""
    _compare("sink", [(k, s, i) for _, k, _, s, i in rows], [(k, s, i) for s, i, k, _, _ in expected], exact=exact)
    if not exact:
        return
    numbers: dict[int, list[int]] = defaultdict(list)
    for _, k, n, _, _ in rows:
        numbers[k].append(n)
    for key, seen in numbers.items():
        if sorted(seen) != list(range(1, len(seen) + 1)):
            raise Violation(f"process function: key {key} has the numbers {sorted(seen)[:30]}")
    if plan.keeps_key_order:
        _check_order((k, i) for _, k, _, _, i in sorted(rows, key=lambda row: (row[1], row[2])))


def _check_order(pairs: Iterable[tuple[int, int]]) -> None:
    """(key, position in its split), in the order in which the operator saw them."""
    last: dict[int, int] = {}
    for key, position in pairs:
        if last.get(key, -1) >= position:
            raise Violation(f"key {key}: row {position} of its split came after row {last[key]}")
        last[key] = position


def _windows(plan: JobPlan, got: list[SimulatedRow], exact: Asked) -> None:
    """(k, window start, window end, n, total)"""
    slides = SLIDES if plan.keyed == "sliding" else 1
    _check_windows(windows(rows_before_keyed(plan), plan.bucket_ms, slides), got, exact=exact)


def _sessions(plan: JobPlan, got: list[SimulatedRow], exact: Asked) -> None:
    """The same."""
    _check_windows(sessions(rows_before_keyed(plan)), got, exact=exact)


def _join(plan: JobPlan, got: list[SimulatedRow], exact: Asked) -> None:
    """(left row, right row)"""
    _compare(plan.keyed, got, joined(plan), exact=exact)


def _rules(plan: JobPlan, got: list[SimulatedRow], exact: Asked) -> None:
    """(kind, k, n, s, i)"""
    expected = rows_before_keyed(plan)
    _numbered([row for row in got if row[0] == 0], expected, plan, exact=exact)
    rules = source_rows(plan, 0)
    keys = {k for _, _, k, _, _ in expected}
    known = [row for row in got if row[0] == 1]
    if exact:
        every = {(1, k, sum(row[3] for row in rules), -1, len(rules)) for k in keys}
        _compare("what keys know of the rules", known, every, exact=exact)
        return
    for key in keys:
        counts = [i for _, k, _, _, i in known if k == key]
        if exact.missing and min(counts, default=0) < len(rules):
            raise Violation(f"key {key} knows {min(counts, default=0)} rules, at least {len(rules)} expected")
        if exact.impossible and max(counts, default=0) > len(rules):
            raise Violation(f"key {key} knows {max(counts)} rules, there are {len(rules)}")


def _with_late_rows(plan: JobPlan, got: list[SimulatedRow], late: list[SimulatedRow], exact: Asked) -> None:
    """Each row is in one window that has a place for it, or is late; a window may come again, for rows that are not
    late for those that were restored."""
    rows = rows_before_keyed(plan)
    too_many = Counter(late) - Counter(rows)  # of a row that was copied, some may be late
    if (exact.impossible and any(row not in set(rows) for row in too_many)) or (exact and too_many):
        raise Violation(f"late rows: {too_many.total()} rows too many, such as {_some(too_many)}")
    counts: Counter[SimulatedRow] = Counter()
    sums: Counter[SimulatedRow] = Counter()
    for k, start, end, n, total in got:
        if plan.keyed in TUMBLING and (start % plan.bucket_ms or end - start != plan.bucket_ms):
            raise Violation(f"window of key {k} from {start} to {end}")
        place = (k, start) if plan.keyed in TUMBLING else (k,)
        counts[place] += n
        sums[place] += total
    for _, _, k, v, t in late:
        place = (k, t // plan.bucket_ms * plan.bucket_ms) if plan.keyed in TUMBLING else (k,)
        counts[place] += 1
        sums[place] += v
    of_plan: dict[SimulatedRow, tuple[int, int]] = {}
    for _, _, k, v, t in rows:
        place = (k, t // plan.bucket_ms * plan.bucket_ms) if plan.keyed in TUMBLING else (k,)
        n, total = of_plan.get(place, (0, 0))
        of_plan[place] = n + 1, total + v
    for place in of_plan.keys() | counts.keys():
        have, want = (counts[place], sums[place]), of_plan.get(place, (0, 0))
        is_missing, is_impossible = exact.missing and have[0] < want[0], exact.impossible and place not in of_plan
        if is_missing or is_impossible or (exact and have != want):
            raise Violation(f"windows and late rows of {place}: (count, sum) is {have}, not {want}")


def _check_windows(
    expected: dict[tuple[int, int, int], tuple[int, int]], got: list[SimulatedRow], *, exact: Asked
) -> None:
    if exact:
        _compare("windows", got, [(*place, *window) for place, window in expected.items()], exact=exact)
        return
    seen = {(k, start, end): n for k, start, end, n, _ in got}
    for place, (n, _) in expected.items():
        if not exact.impossible:  # rows behind the end of what was drained may have made a session longer
            k, start, end = place
            longer = [m for (key, begin, over), m in seen.items() if key == k and begin <= start and end <= over]
            seen[place] = max(longer, default=0)
        if exact.missing and seen.get(place, 0) < n:
            raise Violation(f"window {place}: {seen.get(place, 0)} rows, at least {n} expected")


_MAIN = {
    "none": _stateless,
    "running": _running,
    "process": _process,
    **dict.fromkeys((*TUMBLING, "sliding"), _windows),
    "session": _sessions,
    **dict.fromkeys(JOINS, _join),
    "rules": _rules,
}
