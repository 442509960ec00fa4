"""`make resumable`: real flights are scored with a model on Spark, and each partition's worker is killed with signal 9
after 30, 60 and 90 percent of its rows.

The model says how late a flight will arrive: the mean of the flights that are most like it, among some of the year
before. It is run as plain PySpark and as `sl.resumable`, with and without kills. Exits 0 when every score is equal, a
kill costs no more than one checkpoint interval of work, and without kills `sl.resumable` costs less than 3 % of the
workers' CPU.

    python -m examples.resumable [--rows 120000] [--interval 1000] [--repeat 3] [--no-timing]
    python -m examples.resumable --local      # without Spark: a plain process for each partition, killed as well
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import snapline as sl
from examples.demo import FLIGHTS, add_local
from snapline.sidecar import open_spark

FEATURES = ("dep_delay", "distance", "hour", "month", "air_time")
SCORES = "number long, expected_delay double"
KNOWN_FLIGHTS = 3_000
"""So many flights does the model compare with."""
NEAREST = 16
BLOCK_ROWS = 512
SHARES = (0.3, 0.6, 0.9)
PARTITIONS = 2
ATTEMPTS = 8
BATCH_ROWS = 10_000
"""Of a batch that a process reads, as Spark's are."""
OVERHEAD_MAX = 0.03
OVERHEAD_INTERVAL_MS = 10_000
"""What `sl.resumable` has unless it is told, and the overhead is measured with."""
Scoring: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What is done with the batches of a partition."""


@dataclass(frozen=True)
class Model:
    """Flights whose delays are known, and how far apart values are."""

    known: np.ndarray[Any, np.dtype[np.float32]]
    scale: np.ndarray[Any, np.dtype[np.float32]]
    delays: np.ndarray[Any, np.dtype[np.float32]]

    def predict(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give each flight its score."""
        wanted = features_of(batch) / self.scale
        scores = np.empty(len(wanted))
        for start in range(0, len(wanted), BLOCK_ROWS):
            scores[start : start + BLOCK_ROWS] = self._score(wanted[start : start + BLOCK_ROWS])
        return pa.RecordBatch.from_arrays([batch["number"], pa.array(scores)], ["number", "expected_delay"])

    def _score(self, block: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Score so many that what is between fits into the cache; it is freed before the next block, so that a row
        costs the same in a batch of any size."""
        apart = ((block[:, None, :] - self.known[None, :, :]) ** 2).sum(axis=2)
        nearest = np.argpartition(apart, NEAREST, axis=1)[:, :NEAREST]
        return self.delays[nearest].mean(axis=1, dtype=np.float64)


def features_of(batch: pa.RecordBatch | pa.Table) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The columns that the model looks at; what is not known counts as zero."""
    columns = [pc.fill_null(batch[name].cast(pa.float32()), 0.0).to_numpy(zero_copy_only=False) for name in FEATURES]
    return np.stack(columns, axis=1)


def train(flights: pa.Table) -> Model:
    """Take flights from all over the year."""
    arrived = flights.filter(pc.is_valid(flights["arr_delay"]))
    some = arrived.take(np.linspace(0, arrived.num_rows - 1, KNOWN_FLIGHTS).astype(np.int64))
    values = features_of(some)
    scale = values.std(axis=0) + 1e-6
    return Model(values / scale, scale, some["arr_delay"].to_numpy().astype(np.float32))


class Score(sl.ResumableFunction):
    """Scores flights, and dies where it is told to, once at each place; its state is the mean so far."""

    def __init__(self, model: Model, directory: Path, places: Sequence[int]) -> None:
        """`places`: numbers of flights. `directory`: what was done is written down there."""
        self.model, self.directory, self.places = model, directory, places
        self.rows, self.total = 0, 0.0
        self.saved_s = time.monotonic()
        self.rows_since = 0

    def process(self, item: pa.RecordBatch) -> pa.RecordBatch:
        first, last = item["number"][0].as_py(), item["number"][item.num_rows - 1].as_py()
        place = next((place for place in self.places if first <= place <= last and not self.died(place).exists()), None)
        if place is not None:
            lost = {"seconds": time.monotonic() - self.saved_s, "rows": self.rows_since}
            self.died(place).write_text(json.dumps(lost))
            os.kill(os.getpid(), signal.SIGKILL)
        scored = self.model.predict(item)
        with (self.directory / f"work-{os.getpid()}").open("a") as work:
            work.write(f"{item.num_rows}\n")
        self.rows += item.num_rows
        self.rows_since += item.num_rows
        self.total += pc.sum(scored["expected_delay"]).as_py()
        return scored

    def snapshot(self) -> dict[str, float]:
        self.saved_s, self.rows_since = time.monotonic(), 0
        return {"rows": self.rows, "total": self.total}

    def restore(self, state: Any) -> None:
        self.rows, self.total = state["rows"], state["total"]
        self.saved_s = time.monotonic()

    def died(self, place: int) -> Path:
        """Where it is noted that it died there."""
        return self.directory / f"died-{place}"


def plainly(score: Score) -> Scoring:
    """The same function as plain PySpark has it: in pieces of the same size, from the start each time."""

    def scored(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, BLOCK_ROWS):
                yield score.process(batch.slice(start, BLOCK_ROWS))

    return scored


def measured(function: Scoring, directory: Path) -> Scoring:
    """Note the CPU time of the worker for a partition that comes to its end."""

    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun = time.process_time()
        yield from function(batches)
        (directory / f"cpu-{os.getpid()}-{time.monotonic_ns()}").write_text(str(time.process_time() - begun))

    return noted


@dataclass(frozen=True)
class Outcome:
    """What one run has come to."""

    rows_scored: int
    """The rows that all attempts together have scored."""
    cpu_s: float
    """Of the workers, for the partitions."""
    wall_s: float
    scores: pa.Table
    lost: tuple[dict[str, float], ...]
    """At each kill: what was done since the last checkpoint."""


class Comparison:
    """Runs the model over the flights, in one session of Spark; without one, in a process for each partition."""

    def __init__(self, spark: Any, flights: pa.Table, directory: Path, interval_ms: int) -> None:
        self._directory, self._interval_ms = directory, interval_ms
        self._spark = spark
        self._model = train(flights)
        numbered = flights.select(list(FEATURES)).append_column("number", pa.array(range(flights.num_rows)))
        self.rows = flights.num_rows
        self._each = -(-self.rows // PARTITIONS)
        for part in range(PARTITIONS):
            name = self._part(part)
            name.parent.mkdir(exist_ok=True)
            pq.write_table(numbered.slice(part * self._each, self._each), name)
        self._runs = 0

    def run(self, *, resumable: bool, kills: bool, interval_ms: int = 0) -> Outcome:
        """One run from the start. `interval_ms`: of checkpoints, unless it is that of the comparison."""
        self._runs += 1
        directory = self._directory / f"run-{self._runs}"
        directory.mkdir()
        places = [part * self._each + int(self._each * share) for part in range(PARTITIONS) for share in SHARES]
        score = Score(self._model, directory, places if kills else ())

        def function(uid: str) -> Scoring:
            if not resumable:
                return measured(plainly(score), directory)
            kept = sl.resumable(
                score,
                uid=uid,
                directory=str(directory / "progress"),
                interval_ms=interval_ms or self._interval_ms,
                rows_per_partition=self._each,
            )
            return measured(kept, directory)

        begun = time.monotonic()
        if self._spark is None:
            self._score_here(function, directory)
        else:
            self._frame().mapInArrow(function("score"), SCORES).write.parquet(str(directory / "out"))
        wall_s = time.monotonic() - begun
        worked = sum(int(line) for path in directory.glob("work-*") for line in path.read_text().split())
        cpu_s = sum(float(path.read_text()) for path in directory.glob("cpu-*"))
        lost = tuple(json.loads(path.read_text()) for path in directory.glob("died-*"))
        scores = pq.read_table(directory / "out").sort_by("number")
        return Outcome(worked, cpu_s, wall_s, scores, lost)

    def _part(self, part: int) -> Path:
        return self._directory / "flights" / f"part-{part}.parquet"

    def _frame(self) -> Any:
        """The flights, with the partitions that they were written in."""
        parts = [self._spark.read.parquet(str(self._part(part))).coalesce(1) for part in range(PARTITIONS)]
        frame = parts[0]
        for part in parts[1:]:
            frame = frame.unionAll(part)
        return frame

    def _score_here(self, function: Callable[[str], Scoring], directory: Path) -> None:
        """Score each partition in a process of its own, which is started again as long as it is killed."""
        (directory / "out").mkdir()

        def score(part: int) -> None:
            work = directory / f"partition-{part}"
            arguments = function(f"score-{part}"), self._part(part), directory / "out" / f"part-{part}.parquet"
            work.write_bytes(cloudpickle.dumps(arguments))
            command = [sys.executable, "-m", "examples.resumable", "--partition", str(work)]
            for _ in range(ATTEMPTS):
                ended = subprocess.run(command, check=False).returncode
                if ended != -signal.SIGKILL:
                    break
            if ended:
                raise sl.SnaplineError(f"the process of partition {part} has ended with {ended}")

        with ThreadPoolExecutor(PARTITIONS) as threads:
            list(threads.map(score, range(PARTITIONS)))


def score_partition(work: Path) -> None:
    """Score the partition that `work` says, in this process."""
    function, flights, scores = cloudpickle.loads(work.read_bytes())
    batches = pq.ParquetFile(flights).iter_batches(BATCH_ROWS)
    pq.write_table(pa.Table.from_batches(list(function(batches))), scores)


def compare(options: argparse.Namespace, directory: Path) -> bool:
    """Run all of it; whether everything is as it should be."""
    flights = pq.read_table(options.input).slice(0, options.rows)
    spark = (
        None if options.local else open_spark("snapline-resumable", {"spark.master": f"local[{PARTITIONS},{ATTEMPTS}]"})
    )
    plainly_run = "plain Python" if spark is None else "plain PySpark"
    try:
        runs = Comparison(spark and spark.session, flights, directory, options.interval)
        wanted = runs.run(resumable=False, kills=False)
        print(f"{runs.rows:,} flights in {PARTITIONS} partitions, scored by {plainly_run} in {wanted.wall_s:.1f} s")
        plain = runs.run(resumable=False, kills=True)
        resumed = runs.run(resumable=True, kills=True)
        good = say_kills(plainly_run, runs.rows, wanted, plain)
        good &= say_kills("resumable", runs.rows, wanted, resumed)
        worst_s = max(each["seconds"] for each in resumed.lost)
        allowed_s = options.interval / 1000
        allowed = sum(each["rows"] / each["seconds"] * allowed_s for each in resumed.lost) / runs.rows
        print(
            f"  a kill cost {worst_s:.2f} s of work at most, where an interval is {allowed_s:.2f} s; one interval a kill would be "
            f"{allowed:.1%} of all rows"
        )
        good &= resumed.rows_scored < plain.rows_scored
        if options.timing:
            good &= worst_s <= allowed_s
            good &= say_overhead(runs, options.repeat)
        if options.output is not None:
            pq.write_table(resumed.scores, options.output)
    finally:
        if spark is not None:
            spark.session.stop()
    return good


def say_kills(name: str, rows: int, wanted: Outcome, outcome: Outcome) -> bool:
    """Print what kills have cost; whether the output is right."""
    equal = outcome.scores.equals(wanted.scores)
    twice = outcome.rows_scored - rows
    print(
        f"{name:<14} {len(outcome.lost)} kills at {', '.join(f'{share:.0%}' for share in SHARES)} of each partition: {twice:,} rows "
        f"scored twice ({twice / rows:.1%} of all), {outcome.wall_s:.1f} s, scores {'EQUAL' if equal else 'NOT EQUAL'}"
    )
    return equal


def say_overhead(runs: Comparison, repeat: int) -> bool:
    """Print what the wrapper costs when nothing is killed, run by run in turn; whether it is little."""
    pairs = [
        (
            runs.run(resumable=False, kills=False),
            runs.run(resumable=True, kills=False, interval_ms=OVERHEAD_INTERVAL_MS),
        )
        for _ in range(max(1, repeat))
    ]
    shares = [resumed.cpu_s / plain.cpu_s - 1 for plain, resumed in pairs]
    walls = [resumed.wall_s / plain.wall_s - 1 for plain, resumed in pairs]
    share = statistics.median(shares)
    print(
        f"overhead without kills: {share:.1%} of the workers' CPU (median of {len(pairs)}, {min(shares):.1%} to {max(shares):.1%}); "
        f"{statistics.median(walls):.1%} of the time"
    )
    return share < OVERHEAD_MAX


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; 0 when all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--input", type=Path, default=FLIGHTS)
    parser.add_argument("--rows", type=int, default=120_000, help="the first flights of the year")
    parser.add_argument("--interval", type=int, default=1_000, help="milliseconds between checkpoints")
    parser.add_argument("--repeat", type=int, default=3, help="pairs of runs that measure the overhead")
    parser.add_argument(
        "--no-timing", dest="timing", action="store_false", help="judge nothing that a busy machine changes"
    )
    parser.add_argument("--output", type=Path, default=None, help="a Parquet file for the scores of the run with kills")
    parser.add_argument("--partition", type=Path, default=None, help=argparse.SUPPRESS)
    add_local(parser)
    options = parser.parse_args(arguments)
    if options.partition is not None:
        score_partition(options.partition)
        return 0
    if options.rows < BLOCK_ROWS:
        parser.error(f"--rows {options.rows}: give at least {BLOCK_ROWS}, so that there is something to go on with")
    if not options.input.exists():
        parser.error(f"{options.input} is not there: make data")
    directory = Path(tempfile.mkdtemp(prefix="snapline-resumable-"))
    try:
        good = compare(options, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("as promised" if good else "NOT as promised")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
