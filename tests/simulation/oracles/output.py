"""Committed output equals the reference: exactly once, or at least once where the job asks for no more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

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
from tests.simulation.world import Violation

SHOWN = 5


def check_output(plan: JobPlan, ledger: Ledger, *, exact: bool) -> None:
    """Raises Violation."""
    if plan.side_parallelism:
        _compare("side sink", ledger.committed_rows("side"), side_rows(rows_before_keyed(plan)), exact=exact)
    if plan.raw_branch:
        _compare("raw sink", ledger.committed_rows("raw"), source_rows(plan, 0), exact=exact)
    got = ledger.committed_rows("main")
    if plan.keyed in WINDOWED and plan.has_late_rows:
        _with_late_rows(plan, got, ledger.committed_rows(LATE), exact)
        return
    _MAIN[plan.keyed](plan, got, exact)


def _compare(what: str, got: Iterable[SimulatedRow], expected: Iterable[SimulatedRow], *, exact: bool) -> None:
    have, want = Counter(got), Counter(expected)
    missing, extra = want - have, have - want
    if missing:
        raise Violation(f"{what}: {missing.total()} of {want.total()} rows are missing, such as {_some(missing)}")
    if exact and extra:
        raise Violation(f"{what}: {extra.total()} rows too many, such as {_some(extra)}")
    if any(row not in want for row in extra):
        raise Violation(f"{what}: rows that cannot be, such as {_some(row for row in extra if row not in want)}")


def _some(rows: Iterable[SimulatedRow]) -> list[SimulatedRow]:
    return sorted(rows)[:SHOWN]


def _stateless(plan: JobPlan, got: list[SimulatedRow], exact: bool) -> None:
    _compare("sink", got, rows_before_keyed(plan), exact=exact)


def _running(plan: JobPlan, got: list[SimulatedRow], exact: bool) -> None:
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


def _process(plan: JobPlan, got: list[SimulatedRow], exact: bool) -> None:
    """(kind, k, n, s, i)"""
    expected = rows_before_keyed(plan)
    _numbered([row for row in got if row[0] == 0], expected, plan, exact=exact)
    fired = [(k, at) for kind, k, at, _, _ in got if kind == 1]
    # A late row sets a timer for a time that is over, which fires once more.
    _compare("timers", fired, timers(expected, plan.bucket_ms), exact=exact and not plan.has_late_rows)
    late = [row for row in got if row[0] == 3]
    if late:
        raise Violation(
            f"timers by the clock: {len(late)} rows came before timers that were due, such as {_some(late)}"
        )
    if plan.repeat_ms:
        repeated = [(k, s, i) for kind, k, _, s, i in got if kind == 2]
        _compare("repeated rows", repeated, [(k, s, i) for s, i, k, _, _ in expected], exact=exact)


def _numbered(rows: list[SimulatedRow], expected: list[SimulatedRow], plan: JobPlan, *, exact: bool) -> None:
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


def _windows(plan: JobPlan, got: list[SimulatedRow], exact: bool) -> None:
    """(k, window start, window end, n, total)"""
    slides = SLIDES if plan.keyed == "sliding" else 1
    _check_windows(windows(rows_before_keyed(plan), plan.bucket_ms, slides), got, exact=exact)


def _sessions(plan: JobPlan, got: list[SimulatedRow], exact: bool) -> None:
    """The same."""
    _check_windows(sessions(rows_before_keyed(plan)), got, exact=exact)


def _join(plan: JobPlan, got: list[SimulatedRow], exact: bool) -> None:
    """(left row, right row)"""
    _compare(plan.keyed, got, joined(plan), exact=exact)


def _rules(plan: JobPlan, got: list[SimulatedRow], exact: bool) -> None:
    """(kind, k, n, s, i)"""
    expected = rows_before_keyed(plan)
    _numbered([row for row in got if row[0] == 0], expected, plan, exact=exact)
    rules = source_rows(plan, 0)
    known = {(1, k, sum(row[3] for row in rules), -1, len(rules)) for _, _, k, _, _ in expected}
    _compare("what keys know of the rules", (row for row in got if row[0] == 1), known, exact=exact)


def _with_late_rows(plan: JobPlan, got: list[SimulatedRow], late: list[SimulatedRow], exact: bool) -> None:
    """Each row is in one window that has a place for it, or is late; a window may come again, for rows that are not late for
    those that were restored."""
    rows = rows_before_keyed(plan)
    too_many = Counter(late) - Counter(rows)  # of a row that was copied, some may be late
    if any(row not in set(rows) for row in too_many) or (exact and too_many):
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
        if have[0] < want[0] or (exact and have != want) or place not in of_plan:
            raise Violation(f"windows and late rows of {place}: (count, sum) is {have}, not {want}")


def _check_windows(
    expected: dict[tuple[int, int, int], tuple[int, int]], got: list[SimulatedRow], *, exact: bool
) -> None:
    if exact:
        _compare("windows", got, [(*place, *window) for place, window in expected.items()], exact=True)
        return
    seen = {(k, start, end): n for k, start, end, n, _ in got}
    for place, (n, _) in expected.items():
        if seen.get(place, 0) < n:
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
