"""Jobs of one operator each, on bounded inputs with event time, in the simulator: every one comes to its end, and says
what it says without any fault."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import DiscardingSink
from snapline.coordinator.checkpoint.in_flight import CheckpointsInFlight
from snapline.testing import simulate

ROWS = [{"k": "abc"[n % 3], "at": 10 * n, "v": n * 7 % 11, "n": n} for n in range(120)]
OTHERS = [{"k": "abcd"[n % 4], "at": 15 * n, "w": n * 5 % 13, "m": n} for n in range(80)]
WINDOWS = sl.TumblingEventTimeWindows(200)
SEEDS = pytest.mark.parametrize("seeds", [8, pytest.param(300, marks=[pytest.mark.rare, pytest.mark.timeout(1200)])])


class Seen:
    """Passes rows on, and has a state of which all subtasks get all parts."""

    def initialize_state(self, context):
        self.state = context.operator_state_store.get_union_list_state("seen")
        self.rows = sum(self.state.get())

    def snapshot_state(self, context):
        self.state.update([self.rows])

    def __call__(self, row):
        self.rows += 1
        return row


class Doubled(sl.AsyncFunction):
    """Answers with twice the number."""

    async def async_invoke(self, row):
        return [{"n": row["n"] * 2}]


def stream(env: sl.StreamExecutionEnvironment, rows: list[dict[str, Any]], uid: str) -> sl.DataStream:
    """The rows, with watermarks by an operator of its own."""
    strategy = sl.WatermarkStrategy.for_monotonous_timestamps("at")
    return env.from_collection(rows, uid=uid).assign_timestamps_and_watermarks(strategy)


def joined(env: sl.StreamExecutionEnvironment) -> sl.JoinedStreams:
    """Both inputs by key."""
    return stream(env, ROWS, "rows").key_by("k").join(stream(env, OTHERS, "others").key_by("k"))


def keyed(env: sl.StreamExecutionEnvironment) -> sl.KeyedStream:
    """The first input by key."""
    return stream(env, ROWS, "rows").key_by("k")


JOBS = {
    # each subtask is a region of its own, and one may have finished when another is restored
    "async": lambda env: stream(env, ROWS, "rows").async_wait(
        Doubled(), schema=pa.schema([("n", pa.int64())]), uid="doubled"
    ),
    "interval join": lambda env: joined(env).between(-50, 50, uid="pairs"),
    "join": lambda env: joined(env).unbounded(uid="pairs"),
    "temporal join": lambda env: joined(env).as_of(uid="versions"),
    "window join": lambda env: joined(env).window(WINDOWS, uid="pairs"),
    "sessions": lambda env: keyed(env).window(sl.EventTimeSessionWindows(35)).aggregate(uid="sums", s=sl.sum("v")),
    "rows of a window": lambda env: (
        keyed(env).window(WINDOWS).aggregate(uid="rows-of", first=sl.first("v", by="n"), top=sl.top_n("v", 3))
    ),
    "running": lambda env: keyed(env).running_aggregate(uid="sums", s=sl.sum("v")),
}


@SEEDS
@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_one_operator(name: str, seeds: int) -> None:
    """Through kills, restores of a region or of all, rescales and savepoints."""

    def build(env: sl.StreamExecutionEnvironment) -> None:
        JOBS[name](env).sink_to(DiscardingSink(), uid="out")

    report = simulate(build, seeds=seeds)

    assert report.ok, str(report)
    assert report.restarts


def test_a_finished_region_whose_state_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint completes after another region has been restored, and the last tasks wait for one for ever."""
    monkeypatch.setattr(CheckpointsInFlight, "forget_final_states", lambda self, _: self._final_states.clear())

    def build(env: sl.StreamExecutionEnvironment) -> None:
        JOBS["async"](env).map(Seen(), uid="seen").sink_to(DiscardingSink(), uid="out")

    report = simulate(build, seeds=8, check=False)

    assert report.is_broken and "does not come to its end" in report.story
