"""A user's own job under faults: `simulate` runs it many times on a simulated cluster, and tells what breaks it.

The cluster is that of the project's own simulator: the real coordinator, tasks, operators and state, on simulated
clocks, network, storage and processes, all decided by the seed. Decides what is compared: every run has to put out
what a run without faults has put out, rows in any order. Before the seeds the job runs without faults again, slower,
and in a process with another hash seed if it may depend on that, so that what is not a function of its input is told
apart from what does not survive a fault.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from snapline.dataflow.wire.messages import JobStatus
from snapline.testing.simulated import hash_probe
from snapline.testing.simulated.story import Expected, expectation, is_as_expected, tell
from snapline.testing.simulated.suspicions import FunctionWatch, values_before
from snapline.testing.simulated.user_job import Build, Input, SimulationError, UserJob, prepare_job
from snapline.testing.simulated.user_run import RunOutcome, RunPlan, UserRun, draw_plan, quiet_plan, rows_of_target

LATER_SECONDS = timedelta(days=400, hours=7, minutes=13).total_seconds()
"""How much later the second run without faults happens, for functions that read the clock."""
COLLECT_EVERY = 25
"""Runs, between two collections of garbage."""


@dataclass
class SimulationReport:
    """How a simulation went: what has happened in all runs, and the seed that broke the job, with its story.

    >>> report = sl_testing.SimulationReport(seeds=2, faults={"kill task manager": 3}, checkpoints=9, restarts=3)
    >>> print(report)
    2 seeds, 3 faults (3 kill task manager), 9 checkpoints, 3 restarts: the output was always the same
    >>> report.ok
    True
    """

    seeds: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    """How often each kind of fault has come, over all seeds."""
    checkpoints: int = 0
    restarts: int = 0
    failing_seed: int | None = None
    """The first seed that breaks the job; also None when it is broken without any fault."""
    story: str = ""
    """What broke the job, or with `seed=` what has happened."""
    is_broken: bool = False

    @property
    def ok(self) -> bool:
        """Return whether nothing has broken the job."""
        return not self.is_broken

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        counts = (
            f"{self.seeds} seeds, {sum(self.faults.values())} faults{f' ({kinds})' if kinds else ''}, "
            f"{self.checkpoints} checkpoints, {self.restarts} restarts"
        )
        return f"{counts}\n{self.story}" if self.is_broken else f"{counts}: the output was always the same"


def simulate(
    build: Build,
    inputs: Mapping[str, Input] | None = None,
    seeds: int = 200,
    *,
    seed: int | None = None,
    parallelism: int = 2,
    outputs: Mapping[str, Callable[[], Any]] | None = None,
    before_each: Callable[[], object] | None = None,
    settings: Mapping[str, Any] | None = None,
    check: bool = True,
) -> SimulationReport:
    """Run a job with its own functions on a simulated cluster, once for each seed, while processes crash, stall and
    lose each other, storage fails, and the job is rescaled, saved and stopped; compare what it puts out with a run
    without faults.

    `build` adds the job to the environment that it is given; it must not execute. `inputs`: the rows of its sources, by
    uid: a list of rows, a table, or a list of such, one for each split; sources that are bounded and come with
    Snapline are read once if nothing is given, but for those that look for their input while the job runs, such as a
    FileSource. `seeds`: how many are tried. `seed`: replay this one alone, and tell all
    of it. `parallelism`: of operators that set none.

    Sinks that come with Snapline are replaced. A sink of one's own runs for real: `outputs` gives, by its uid or any
    other name, a function that returns the rows that lie in its target, and `before_each` empties the target; without
    it, rows of a two-phase sink count when they are committed first, those of any other when they are written.

    Returns a report. Raises AssertionError with the story of the first seed that breaks the job, unless `check` is
    False; SimulationError for a job that cannot be simulated, and why; and what a job that cannot run raises.

    >>> def build(env):
    ...     numbers = env.from_collection([{"n": n} for n in range(12)], uid="numbers")
    ...     numbers.map(lambda row: {"tens": row["n"] * 10}, uid="tens").sink_to(sl_connectors.DiscardingSink(), uid="out")
    >>> sl_testing.simulate(build, seeds=3).ok
    True
    >>> class Numbered:
    ...     last = 0
    ...     def __call__(self, row):
    ...         self.last += 1
    ...         return {"n": row["n"], "number": self.last}
    >>> def forgetful(env):
    ...     numbers = env.from_collection([{"n": n} for n in range(12)], uid="numbers")
    ...     numbers.map(Numbered(), uid="numbered").sink_to(sl_connectors.DiscardingSink(), uid="out")
    >>> report = sl_testing.simulate(forgetful, seeds=20, check=False)
    >>> "it begins at operator 'numbered'" in report.story, "self.last changes while rows come" in report.story
    (True, True)
    """
    _check_arguments(seeds, seed, parallelism)
    _check_tables(inputs, outputs, settings)
    if before_each is not None and not callable(before_each):
        raise SimulationError(f"simulate: before_each is a function without arguments, got {before_each!r}")
    job = prepare_job(build, inputs or {}, parallelism, settings or {}, (outputs or {}).keys())
    simulation = _Simulation(job, outputs or {}, before_each or (lambda: None))
    with garbage_waits() as collect:
        report = simulation.run(range(seeds) if seed is None else [seed], collect, is_full=seed is not None)
    if check and report.is_broken:
        raise AssertionError(report.story)
    return report


def _check_arguments(seeds: int, seed: int | None, parallelism: int) -> None:
    for name, value, least in (("seeds", seeds, 1), ("seed", seed, 0), ("parallelism", parallelism, 1)):
        if (value is not None or name != "seed") and (not isinstance(value, int) or value < least):
            raise SimulationError(f"simulate: {name} must be a whole number, at least {least}, got {value!r}")


def _check_tables(inputs: Any, outputs: Any, settings: Any) -> None:
    for name, value in (("inputs", inputs), ("outputs", outputs), ("settings", settings)):
        if value is not None and not isinstance(value, Mapping):
            raise SimulationError(f"simulate: {name} is a dictionary, got {value!r}")
    for name, read in (outputs or {}).items():
        if not callable(read):
            raise SimulationError(f"simulate: outputs[{name!r}] is a function that returns rows, got {read!r}")


class _Simulation:
    """All runs of one call."""

    def __init__(
        self, job: UserJob, outputs: Mapping[str, Callable[[], Any]], before_each: Callable[[], object]
    ) -> None:
        self._job = job
        self._outputs = outputs
        self._before_each = before_each
        self._report = SimulationReport()
        self._values = values_before({operator.uid: operator.spec for operator in job.operators})
        self._faults: Counter[str] = Counter()

    def run(self, seeds: range | list[int], collect: Callable[[], object], *, is_full: bool) -> SimulationReport:
        """Run all seeds, or up to the first that breaks the job."""
        job, report = self._job, self._report
        outcome, _ = self._run_once(quiet_plan(job, "reference"))
        if outcome.status is not JobStatus.FINISHED:
            raise self._cannot_run(outcome)
        expected = expectation(job, outcome)
        again, watch = self._run_once(quiet_plan(job, "again", pause_ms=60, max_delay_ms=6), LATER_SECONDS)
        if not is_as_expected(expected, again):
            head = "the job puts out something else when it runs once more, without any fault, later and slower"
            return self._broken(head, expected, again, watch, is_full=is_full)
        hashed = hash_probe.run_with_other_hashes(job)
        if hashed is not None:  # what lies in targets is known to this process alone
            for name in self._outputs:
                hashed.visible.pop(name, None)
        if hashed is not None and not is_as_expected(self._without_targets(expected), hashed):
            head = "the job puts out something else in a process with another hash seed (PYTHONHASHSEED), without any fault"
            return self._broken(head, expected, hashed, FunctionWatch(self._values), is_full=is_full)
        for number in seeds:
            if report.seeds % COLLECT_EVERY == 0:
                collect()
            outcome, watch = self._run_once(draw_plan(job, number))
            self._count(outcome)
            if not is_as_expected(expected, outcome):
                report.failing_seed = number
                return self._broken(f"seed {number} breaks the job", expected, outcome, watch, is_full=is_full)
            if is_full:
                report.story = "\n".join(outcome.story)
        return report

    def _run_once(self, plan: RunPlan, later_seconds: float = 0.0) -> tuple[RunOutcome, FunctionWatch]:
        self._before_each()
        watch = FunctionWatch(self._values)
        with ExitStack() as stack:
            if later_seconds:
                now, now_ns = time.time, time.time_ns
                stack.enter_context(patch.object(time, "time", lambda: now() + later_seconds))
                stack.enter_context(patch.object(time, "time_ns", lambda: now_ns() + int(later_seconds * 1e9)))
            outcome = UserRun(self._job, plan, watch.arrived, watch.opened).run()
        for name, read in self._outputs.items():
            outcome.visible[name] = rows_of_target(read(), f"simulate: outputs[{name!r}]")
        return outcome, watch

    def _count(self, outcome: RunOutcome) -> None:
        report = self._report
        report.seeds += 1
        report.checkpoints += outcome.checkpoints
        report.restarts += outcome.restarts
        self._faults.update(outcome.faults)
        report.faults = dict(self._faults)

    def _without_targets(self, expected: Expected) -> Expected:
        return replace(
            expected, visible={uid: rows for uid, rows in expected.visible.items() if uid not in self._outputs}
        )

    def _broken(
        self, head: str, expected: Expected, outcome: RunOutcome, watch: FunctionWatch, *, is_full: bool
    ) -> SimulationReport:
        report = self._report
        report.is_broken = True
        story = tell(self._job, expected, outcome, watch, is_full=is_full)
        replay = "" if report.failing_seed is None else f"\n  replay it: simulate(..., seed={report.failing_seed})"
        report.story = f"{head}\n{story}{replay}"
        return report

    @staticmethod
    def _cannot_run(outcome: RunOutcome) -> SimulationError:
        failure = outcome.failure
        if failure is not None:
            of = f"operator {failure.operator_uid!r}: " if failure.operator_uid else ""
            return SimulationError(f"the job fails without any fault: {of}{failure.summary}")
        return SimulationError(
            f"the job does not come to its end without any fault{outcome.detail and ': '}{outcome.detail}"
        )


@contextmanager
def garbage_waits() -> Iterator[Callable[[], object]]:
    """Within, garbage is collected only by the function that is given: what was there before is not looked at, and that
    is most of it."""
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield gc.collect
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
