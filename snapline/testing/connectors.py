"""A source or sink of one's own under every fault that its contract speaks of: `check_source` and `check_sink`.

The connector runs for real, in a job on the simulated cluster of `simulate`: real coordinator, tasks, state and
checkpoints, on simulated clocks, network and storage, on one thread. First it runs without faults, and each call of
each of its methods is noted: these are its steps. Then the job runs again and again. Decides which runs there are: at
the first, a middle and the last call of every method the process is killed before or after the call, an exception is
raised before or after it, or the leader dies and another adopts the job; a killed process is followed by a second
fault at each step of the recovery; the job is rescaled, stopped and restored at another parallelism, restored twice
from one savepoint, drained, and runs without checkpoints; and seeds draw faults of all kinds together. Decides what
must hold in each: the job comes to its end, and all rows are there, once. Mirrors Flink's connector testing framework
(SourceTestSuiteBase, SinkTestSuiteBase).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa

from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.dataflow.api.connector_api import Sink, Source
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import JobStatus
from snapline.environment import StreamExecutionEnvironment
from snapline.testing.simulated.lineage import Rows
from snapline.testing.simulated.step_faults import AFTER, faults_at_every_step, faults_while_rescaled
from snapline.testing.simulated.story import difference, end_of, events
from snapline.testing.simulated.user_job import JOB, SimulationError, UserJob, prepare_job
from snapline.testing.simulated.user_run import (
    DRAIN,
    LARGEST_PARALLELISM,
    RESCALE,
    STOP,
    TWICE,
    RunOutcome,
    RunPlan,
    UserRun,
    draw_plan,
    quiet_plan,
    rows_of_target,
)
from snapline.testing.simulated.watched_connectors import WatchedSink, WatchedSource
from snapline.testing.user_simulation import COLLECT_EVERY, garbage_waits

__all__ = ["ConnectorReport", "check_sink", "check_source"]

Target: TypeAlias = "Iterable[Any] | pa.Table | pa.RecordBatch"
UNDER_TEST = "under-test"
OTHER_END = "other-end"
ROWS = tuple({"n": n, "text": f"row {n}"} for n in range(24))
"""What a sink is given unless the test says otherwise."""
OPERATIONS = (RESCALE, RESCALE, STOP, STOP, TWICE, DRAIN)
SEEDS = 12
"""Runs whose faults are drawn, beside those at every step."""
RESTARTS_MAX = 60
"""More than the faults of any run; a connector that fails for ever ends with that."""
ARRIVAL_PAUSE_MS = 60
PATIENCE_MS = 3_000
"""A source without an end has lost rows when none came for so long, in simulated time."""


@dataclass
class ConnectorReport:
    """What was tried with a connector, and what broke it.

    >>> print(sl_testing.ConnectorReport("sink", runs=3, steps={"commit": 2, "write": 4}))
    3 runs of the sink, with faults at 2 steps (commit 2, write 4): all rows were there, once
    """

    connector: str
    runs: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    """How often each method was called in the run without faults."""
    faults: dict[str, int] = field(default_factory=dict)
    """How often each kind of fault has come."""
    restarts: int = 0
    story: str = ""
    """What broke the connector; empty: nothing did."""

    @property
    def ok(self) -> bool:
        """Return whether nothing has broken the connector.

        >>> sl_testing.ConnectorReport("sink", story="commit: rows came twice").ok
        False
        """
        return not self.story

    def __str__(self) -> str:
        steps = ", ".join(f"{name} {count}" for name, count in sorted(self.steps.items()))
        counts = f"{self.runs} runs of the {self.connector}, with faults at {len(self.steps)} steps ({steps})"
        return f"{counts}\n{self.story}" if self.story else f"{counts}: all rows were there, once"


def check_source(
    create: Callable[[], Source],
    expected: Target,
    *,
    arrivals: Sequence[Callable[[], None]] = (),
    parallelism: int = 2,
    runs: int | None = None,
    seed: int = 0,
    real_pause_ms: int = 0,
    check: bool = True,
) -> ConnectorReport:
    """Run a source under every fault that its contract speaks of; each time all its rows must come, once.

    `create`: called before each run; makes the input anew, and returns the source. Let its batches be small: faults
    come between two of them. `expected`: the rows that it has. `arrivals`: called one after the other while the job
    runs, for a source that discovers: each may put something there; `expected` has what comes of that, too. A source
    without an end is stopped with a savepoint when all has come. `parallelism`: of its readers, at first. `runs`: at
    most so many of all runs, drawn by `seed`; all, if nothing is said, some hundred. `real_pause_ms`: how long to
    wait, really, when the source has nothing, for one whose rows come from a server on threads of its own.

    Returns a report. Raises AssertionError with what broke the source, unless `check` is False; SimulationError, and
    what the source raises, when it does not even work without a fault.

    >>> class Tens(sl.Source):
    ...     def enumerate_splits(self):
    ...         return [sl.SourceSplit("a", {"begin": 0}), sl.SourceSplit("b", {"begin": 100})]
    ...     def create_reader(self, context):
    ...         return TensReader()
    >>> class TensReader(sl.SourceReader):
    ...     def add_splits(self, splits):
    ...         self.splits = {split.split_id: split for split in splits}
    ...         self.read = {split.split_id: split.position.get("read", 0) for split in splits}
    ...     def poll_next(self, now_ms):
    ...         for split_id, read in self.read.items():
    ...             if read < 10:
    ...                 self.read[split_id] += 1
    ...                 row = {"n": [self.splits[split_id].description["begin"] + read]}
    ...                 return sl.Polled(sl.InputStatus.MORE_AVAILABLE, pa.RecordBatch.from_pydict(row))
    ...         return sl.Polled(sl.InputStatus.END_OF_INPUT)
    ...     def snapshot_splits(self, checkpoint_id):
    ...         split_of = self.splits
    ...         return [sl.SourceSplit(name, split_of[name].description, {"read": n}) for name, n in self.read.items()]
    >>> rows = [{"n": n} for n in (*range(10), *range(100, 110))]
    >>> sl_testing.check_source(Tens, rows, runs=5).ok
    True
    """
    _check_called("check_source", create=create, **{f"arrivals[{n}]": each for n, each in enumerate(arrivals)})
    wanted = rows_of_target(expected)

    def build(env: StreamExecutionEnvironment) -> None:
        source = WatchedSource(_created("check_source", create, Source), real_pause_ms / 1000)
        env.from_source(source, uid=UNDER_TEST).sink_to(DiscardingSink(), uid=OTHER_END)

    suite = _Suite("source", build, parallelism, wanted, lambda outcome: outcome.visible.get(OTHER_END, Counter()))
    suite.outside = tuple((ARRIVAL_PAUSE_MS * (number + 1), each) for number, each in enumerate(arrivals))
    suite.patience_ms = PATIENCE_MS * (10 if real_pause_ms else 1)
    return _checked(suite, runs, seed, check=check)


def check_sink(
    create: Callable[[], Sink],
    read: Callable[[], Target],
    rows: Target = ROWS,
    *,
    guarantee: str = "exactly_once",
    leftovers: Callable[[], Iterable[Any]] | None = None,
    parallelism: int = 2,
    runs: int | None = None,
    seed: int = 0,
    check: bool = True,
) -> ConnectorReport:
    """Run a sink under every fault that its contract speaks of; each time all rows must be in its target, once.

    `create`: called before each run; makes an empty target, and returns the sink. `read`: the rows that a reader of the
    target sees. `rows`: what is written. `guarantee`: `exactly_once`: each row is there once, and none before a
    checkpoint that has it is complete; `idempotent`: rows may be seen early, and each is there once in the end;
    `at_least_once`: rows may come twice. `leftovers`: what is open in the target, such as transactions; nothing may be,
    when the job has ended. `parallelism`: of the sink, at first. `runs`: at most so many of all runs, drawn by `seed`;
    all, if nothing is said, some hundred.

    Returns a report. Raises AssertionError with what broke the sink, unless `check` is False; SimulationError, and what
    the sink raises, when it does not even work without a fault.

    >>> import json, pathlib
    >>> folder = pathlib.Path(tmp)
    >>> class Staged(sl.Sink):
    ...     def create_writer(self, context, restored):
    ...         return StagedWriter(context.execution_attempt)
    ...     def create_committer(self, context):
    ...         return StagedCommitter()
    >>> class StagedWriter(sl.SinkWriter):
    ...     ending = "staged"
    ...     def __init__(self, attempt):
    ...         self.attempt, self.rows = attempt, []
    ...     def write(self, batch):
    ...         self.rows += batch.to_pylist()
    ...     def prepare_commit(self, checkpoint_id):
    ...         name, rows, self.rows = f"{self.attempt}-{checkpoint_id}", self.rows, []
    ...         (folder / f"{name}.{self.ending}").write_text(json.dumps(rows))
    ...         return [sl.Committable({"name": name})]
    >>> class StagedCommitter(sl.Committer):
    ...     def commit(self, committables):
    ...         for staged in (folder / f"{one.data['name']}.staged" for one in committables):
    ...             if staged.exists():
    ...                 staged.rename(staged.with_suffix(".rows"))
    >>> def create():
    ...     for file in folder.iterdir():
    ...         file.unlink()
    ...     return Staged()
    >>> def read():
    ...     return [row for file in folder.glob("*.rows") for row in json.loads(file.read_text())]
    >>> sl_testing.check_sink(create, read, runs=5).ok
    True
    >>> StagedWriter.ending = "rows"  # seen at the barrier, before anybody knows whether the checkpoint completes
    >>> report = sl_testing.check_sink(create, read, runs=5, check=False)
    >>> print(report.story.splitlines()[0])
    the sink shows rows before any checkpoint is complete: only commit() may make rows visible
    """
    guarantees = ("exactly_once", "idempotent", "at_least_once")
    if guarantee not in guarantees:
        raise SimulationError(f"check_sink: guarantee must be one of {', '.join(guarantees)}, got {guarantee!r}")
    _check_called("check_sink", create=create, read=read, leftovers=tuple if leftovers is None else leftovers)
    given = _given(rows)

    def build(env: StreamExecutionEnvironment) -> None:
        numbers = env.from_collection(given, uid=OTHER_END)
        numbers.rebalance().sink_to(WatchedSink(_created("check_sink", create, Sink)), uid=UNDER_TEST)

    def visible(_: RunOutcome) -> Rows:
        seen = rows_of_target(read())
        if guarantee == "at_least_once":
            seen = Counter({row: min(count, wanted[row] or count) for row, count in seen.items()})
        return seen

    halves, wanted = [given[0::2], given[1::2]], rows_of_target(given)
    suite = _Suite("sink", build, parallelism, wanted, visible)
    suite.inputs = {OTHER_END: halves}
    suite.is_hidden = guarantee == "exactly_once"
    suite.leftovers = leftovers
    suite.read = read
    return _checked(suite, runs, seed, check=check)


def _checked(suite: _Suite, runs: int | None, seed: int, *, check: bool) -> ConnectorReport:
    if runs is not None and (not isinstance(runs, int) or runs < 1):
        raise SimulationError(f"runs must be at least 1, got {runs!r}")
    with garbage_waits() as collect:
        suite.collect = collect
        report = suite.run(runs, random.Random(seed))  # noqa: S311 - replayed from the seed
    if check and not report.ok:
        raise AssertionError(f"{report.story}\n  replay it: seed={seed}, runs={runs}")
    return report


def _check_called(where: str, **functions: object) -> None:
    for name, function in functions.items():
        if not callable(function):
            raise SimulationError(f"{where}: {name} is a function without arguments, got {function!r}")


def _created(where: str, create: Callable[[], Any], kind: type[Any]) -> Any:
    created = create()
    if not isinstance(created, kind):
        raise SimulationError(f"{where}: create must return a {kind.__name__}, and returned {created!r}")
    return created


def _given(rows: Any) -> list[dict[str, Any]]:
    if isinstance(rows, (pa.Table, pa.RecordBatch)):
        return rows.to_pylist()
    given = list(rows) if isinstance(rows, Iterable) else [rows]
    if not all(isinstance(row, Mapping) for row in given):
        raise SimulationError(f"check_sink: rows is a table or a list of dictionaries, got {rows!r}")
    return [dict(row) for row in given]


class _TooEarly(BaseException):
    """Rows are visible that no complete checkpoint has."""


class _Suite:
    """All runs of one connector."""

    def __init__(
        self,
        connector: str,
        build: Callable[[StreamExecutionEnvironment], None],
        parallelism: int,
        expected: Rows,
        visible: Callable[[RunOutcome], Rows],
    ) -> None:
        self._build = build
        self._parallelism = parallelism
        self._expected = expected
        self._visible = visible
        self._report = ConnectorReport(connector)
        self._faults: Counter[str] = Counter()
        self.inputs: Mapping[str, Any] = {}
        self.outside: tuple[tuple[int, Callable[[], None]], ...] = ()
        self.patience_ms = PATIENCE_MS
        self.is_hidden = False
        self.read: Callable[[], Target] = tuple
        self.leftovers: Callable[[], Iterable[Any]] | None = None
        self.collect: Callable[[], object] = lambda: None

    def run(self, runs: int | None, rng: random.Random) -> ConnectorReport:
        """Make all runs, or up to the first that breaks the connector."""
        report = self._report
        calls = self._without_faults()
        if report.story:
            return report
        report.steps = dict(calls)
        planned = self._planned(calls, rng)
        if runs is not None and runs < len(planned):
            planned = [planned[index] for index in sorted(rng.sample(range(len(planned)), runs))]
        for name, plan in planned:
            outcome, _ = self._run_once(plan)
            self._faults.update(outcome.faults)
            report.faults = dict(self._faults)
            report.restarts += outcome.restarts
            if story := self._broken(outcome):
                report.story = "\n".join([f"{name}: this breaks the {report.connector}", *story])
                return report
        return report

    def _without_faults(self) -> Counter[str]:
        """Run once as if nothing ever failed, and once without checkpoints; the calls of the first one."""
        report = self._report
        try:
            outcome, calls = self._run_once(replace(QUIET, look=self._look))
        except _TooEarly:
            report.story = (
                "the sink shows rows before any checkpoint is complete: only commit() may make rows visible\n"
                + "\n".join(difference("its target", Counter(), rows_of_target(self.read())))
            )
            return Counter()
        if story := self._broken(outcome):
            head = f"the {report.connector} does not do without any fault what is expected of it"
            if outcome.status is not JobStatus.FINISHED:
                raise SimulationError("\n".join([head, *story]))
            report.story = "\n".join([head, *story])
            return calls
        if not self.outside and not self._is_endless(outcome):
            outcome, _ = self._run_once(replace(QUIET, interval_ms=0))
            if story := self._broken(outcome):
                report.story = "\n".join([f"without checkpoints the {report.connector} is broken", *story])
        return calls

    def _is_endless(self, outcome: RunOutcome) -> bool:
        return outcome.plan.has_all is not None

    def _look(self, step: str, moment: str, checkpoints: int) -> None:
        if (
            (step, moment) == ("prepare_commit", AFTER)
            and self.is_hidden
            and not checkpoints
            and rows_of_target(self.read())
        ):
            raise _TooEarly

    def _planned(self, calls: Counter[str], rng: random.Random) -> list[tuple[str, RunPlan]]:
        """Return what is tried, each with what it is called."""
        planned = []
        for faults in faults_at_every_step(calls, rng):
            said = ", then ".join(map(str, faults))
            planned.append((said, replace(QUIET, steps=faults)))
        if "commit" in calls:
            for faults in faults_while_rescaled():
                fewer = replace(QUIET, seed="fewer", steps=faults, rescale_to=LARGEST_PARALLELISM - 1)
                planned.append((", then ".join(map(str, faults)), fewer))
        for number, operation in enumerate(OPERATIONS):
            plan = replace(QUIET, seed=f"{number}{operation}", operations=((60 + 30 * number, operation),))
            planned.append((f"the user wants: {operation}", plan))
        planned += [
            (f"the faults of seed {number}", replace(draw_plan(self._job(), number), seed=str(number)))
            for number in range(SEEDS)
        ]
        return planned

    def _job(self, parallelism: int = 0) -> UserJob:
        return prepare_job(self._build, self.inputs, parallelism or self._parallelism, {}, ())

    def _run_once(self, plan: RunPlan) -> tuple[RunOutcome, Counter[str]]:
        report = self._report
        if report.runs % COLLECT_EVERY == 0:
            self.collect()
        report.runs += 1
        job = self._job(plan.rescale_to and plan.rescale_to + 1)
        number = JobID(f"{JOB[0]}{report.runs:031x}")  # its own, because targets remember the jobs that wrote to them
        works_at_all = plan.seed != QUIET.seed or bool(plan.steps)
        attempts = {"restart-strategy.fixed-delay.attempts": str(RESTARTS_MAX if works_at_all else 2)}
        configuration = {**job.graph.configuration, **attempts}
        job = replace(job, graph=replace(job.graph, job_id=number, configuration=configuration))
        quiet = quiet_plan(job, "quiet")
        plan = replace(plan, slots=quiet.slots, outside=self.outside)
        watch = _Waiting(self._expected, self.patience_ms)
        is_endless = any(
            not operator.spec.source.bounded for operator in job.operators if hasattr(operator.spec, "source")
        )
        run = UserRun(
            job, replace(plan, has_all=watch.has_all if is_endless else None), lambda *_: None, lambda _: None
        )
        watch.now_ms = lambda: run.now_ms
        watch.begins_at_ms = len(self.outside) * ARRIVAL_PAUSE_MS + plan.safety_ms
        outcome = run.run()
        outcome.faults.update({f"{fault.kind} {fault.moment} a step": 1 for fault in plan.steps[: run.steps.come]})
        return outcome, run.steps.calls

    def _broken(self, outcome: RunOutcome) -> list[str]:
        """Return the story of what is wrong with a run; empty when nothing is."""
        story: list[str] = []
        if outcome.status is not JobStatus.FINISHED:
            story += end_of(outcome)
        else:
            seen = self._visible(outcome)
            if seen != self._expected:
                story += difference("its rows", self._expected, seen)
                story += [f"    why: {reason}" for reason in _reasons(self._report.connector, self._expected, seen)]
            left = list(self.leftovers()) if self.leftovers is not None else []
            if left:
                story.append(f"  the job has ended and left open: {', '.join(map(str, left[:4]))}")
        return story + events(outcome, is_full=False) if story else []


QUIET = RunPlan("quiet")


class _Waiting:
    """Whether a source without an end has shown all its rows, or none any more for too long."""

    def __init__(self, expected: Rows, patience_ms: int) -> None:
        self._expected = expected
        self._patience_ms = patience_ms
        self._seen = -1
        self._since_ms = 0
        self.begins_at_ms = 0
        self.now_ms: Callable[[], int] = lambda: 0

    def has_all(self, visible: Mapping[str, Rows]) -> bool:
        """Whether to stop the job."""
        seen, now_ms = visible.get(OTHER_END, Counter()).total(), self.now_ms()
        if seen != self._seen:
            self._seen, self._since_ms = seen, now_ms
        if now_ms < self.begins_at_ms:
            return False
        return seen >= self._expected.total() or now_ms - self._since_ms > self._patience_ms


def _reasons(connector: str, expected: Rows, seen: Rows) -> list[str]:
    """What such a difference mostly comes from."""
    twice, missing = any(row in expected for row in seen - expected), bool(expected - seen)
    if connector == "source":
        reasons = [
            (twice, "rows come again: the position in snapshot_splits must lie behind every row that poll_next returned"),
            (missing, "rows are lost: the position must not lie behind rows that poll_next has not returned, and a split is finished only when all its rows were"),
        ]  # fmt: skip
    else:
        reasons = [
            (twice, "rows come again: commit() must do nothing for what it has committed before, and nothing else may make rows visible"),
            (missing, "rows are lost: prepare_commit must keep what was written so that it outlives the process, and commit() must be able to make it visible in another one"),
        ]  # fmt: skip
    return [reason for holds, reason in reasons if holds]
