"""What differs between two runs of a job, which operator it began at, why that may be, and what had happened before.

The first operator, from the sources on, that has put out something else for good than in the run without faults is the
one to look at: all that follows it only passes that on. A sink is it when what came to it was right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snapline.dataflow.graph.operator_specs import GlobalCommitterSpec
from snapline.dataflow.wire.messages import JobStatus
from snapline.testing.simulated.lineage import Rows
from snapline.testing.simulated.suspicions import FunctionWatch, calls_of
from snapline.testing.simulated.user_job import OperatorInfo, UserJob
from snapline.testing.simulated.user_run import RunOutcome

SHOWN_ROWS = 4
"""The most rows that are shown of each kind of difference."""
SHOWN_EVENTS = 14
"""The most of the latest events that a short story shows."""


@dataclass(frozen=True)
class Expected:
    """What the run without faults has put out."""

    visible: Mapping[str, Rows]
    emitted: Mapping[str, Rows]


def expectation(job: UserJob, outcome: RunOutcome) -> Expected:
    """Take what a run has put out as what every run has to."""
    return Expected(outcome.visible, {operator.uid: outcome.emitted(operator.uid) for operator in job.operators})


def is_as_expected(expected: Expected, outcome: RunOutcome) -> bool:
    """Whether the job has finished, and readers of its sinks see what they have to."""
    return outcome.status is JobStatus.FINISHED and outcome.visible == expected.visible


def tell(job: UserJob, expected: Expected, outcome: RunOutcome, watch: FunctionWatch, *, is_full: bool) -> str:
    """The story of a run that is not as expected. `is_full`: with all that has happened."""
    lines: list[str] = []
    if outcome.status is not JobStatus.FINISHED:
        lines += end_of(outcome)
    differing = [uid for uid in {**expected.visible, **outcome.visible} if _differs(expected.visible, outcome, uid)]
    for uid in differing if outcome.status is JobStatus.FINISHED else ():
        lines += difference(f"sink {uid!r}", expected.visible.get(uid, Counter()), outcome.visible.get(uid, Counter()))
    lines += _culprit(job, expected, outcome, watch, differing)
    lines += events(outcome, is_full=is_full)
    return "\n".join(lines)


def _differs(visible: Mapping[str, Rows], outcome: RunOutcome, uid: str) -> bool:
    return visible.get(uid, Counter()) != outcome.visible.get(uid, Counter())


def end_of(outcome: RunOutcome) -> list[str]:
    """How a run ended that should have finished, as lines for people."""
    if outcome.status is None:
        said = f"the job does not come to its end{f': {outcome.detail}' if outcome.detail else ''}"
    else:
        said = f"the job is {outcome.status.value}"
    failure = outcome.failure
    if failure is None:
        return [f"  {said}"]
    of = f" of operator {failure.operator_uid!r}" if failure.operator_uid else ""
    return [f"  {said}; the latest failure{of}: {failure.summary}"]


def difference(what: str, expected: Rows, actual: Rows) -> list[str]:
    """What one of them has too often, what should not be there, and what is missing, as lines for people."""
    surplus, missing = actual - expected, expected - actual
    twice = {row: count for row, count in surplus.items() if row in expected}
    other = {row: count for row, count in surplus.items() if row not in expected}
    counts = [
        f"{sum(rows.values())} {kind}"
        for rows, kind in ((twice, "too often"), (other, "that should not be"), (missing, "missing"))
        if rows
    ]
    lines = [f"  {what}: {', '.join(counts)} ({actual.total()} rows, {expected.total()} expected)"]
    lines += _rows("came again:", twice) + _rows("not expected:", other) + _rows("missing:", missing)
    return lines


def _rows(kind: str, rows: Mapping[str, int]) -> list[str]:
    shown = [
        f"    {kind:<13} {row}{f' ({count} times)' if count > 1 else ''}"
        for row, count in list(rows.items())[:SHOWN_ROWS]
    ]
    return [*shown, *([f"    {kind:<13} ... and {len(rows) - SHOWN_ROWS} others"] if len(rows) > SHOWN_ROWS else [])]


def _culprit(
    job: UserJob, expected: Expected, outcome: RunOutcome, watch: FunctionWatch, sinks: Sequence[str]
) -> list[str]:
    first = _first_that_differs(job, expected, outcome, sinks)
    if first is None:
        return []
    called = f" ({first.name})" if first.name != first.uid else ""
    lines = [f"  it begins at operator {first.uid!r}{called}, whose input was right:"]
    emitted, wanted = outcome.emitted(first.uid), expected.emitted[first.uid]
    if emitted != wanted and first.uid not in job.that_pass_committables:
        lines += ["  " + line for line in difference(f"{first.uid!r} put out", wanted, emitted)]
    reasons = [*watch.changes(first.uid), *calls_of(first.spec)]
    if (first.is_sink and first.uid in sinks) or isinstance(first.spec, GlobalCommitterSpec):
        reasons.append(_of_sink(first))
    if not reasons:
        reasons.append(
            "its code shows nothing; it may depend on the order of rows of several splits, inputs or subtasks, which is "
            "another one in each run"
        )
    lines += [f"    why: {reason}" for reason in dict.fromkeys(reasons)]
    return lines


def _first_that_differs(
    job: UserJob, expected: Expected, outcome: RunOutcome, sinks: Sequence[str]
) -> OperatorInfo | None:
    failure = outcome.failure
    passing = job.that_pass_committables
    for operator in job.operators:
        if operator.uid in passing:
            continue
        emitted, wanted = outcome.emitted(operator.uid), expected.emitted[operator.uid]
        finished = outcome.status is JobStatus.FINISHED
        if emitted != wanted if finished else bool(emitted - wanted):
            return operator
    named = [*sinks, *([failure.operator_uid] if failure is not None else [])]
    return next((operator for operator in reversed(job.operators) if operator.uid in named), None)


def _of_sink(operator: OperatorInfo) -> str:
    from snapline.dataflow.api.two_phase_commit import TwoPhaseCommitSinkFunction

    sink = getattr(operator.spec, "sink", None) or getattr(operator.spec, "function", None)
    if getattr(sink, "commits_together", False):
        return (
            "its transactions: commit() of its global committer makes all of a checkpoint visible at once, and changes "
            "nothing when that id, or a higher one, is noted already"
        )
    if isinstance(sink, TwoPhaseCommitSinkFunction) or getattr(sink, "two_phase", False):
        return (
            "its transactions: only commit() may make rows visible, once however often it is called, and all of what "
            "pre_commit() has promised"
        )
    return (
        "it writes rows at once, and no restart takes them back: make it a TwoPhaseCommitSinkFunction, or write in a way "
        "that the same row twice is one, and give `outputs` that read the target"
    )


def events(outcome: RunOutcome, *, is_full: bool) -> list[str]:
    """What has happened in a run, the latest of it or all, as lines for people."""
    lines = outcome.story
    if not is_full:
        lines = [line for line in lines if not line.rstrip().endswith(" starts")]
        skipped = len(lines) - SHOWN_EVENTS
        if skipped > 0:
            lines = [f"        ... {skipped} earlier events", *lines[-SHOWN_EVENTS:]]
    return ["  what happened, by simulated milliseconds:", *(f"    {line}" for line in lines)]
