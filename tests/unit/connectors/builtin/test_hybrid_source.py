"""Sources one after the other: the switch, what a snapshot holds around it, watermarks, and wrong sources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource
from snapline.connectors.builtin.hybrid_source import HybridEnumerator, HybridSource
from snapline.connectors.builtin.scripted import ScriptedSource
from snapline.connectors.files.file_source import FileSource
from snapline.connectors.formats import JsonFormat
from snapline.coordinator.jobmaster.operations import SnapshotCompleted, StopWithSavepoint
from snapline.dataflow.errors import ConnectorError
from snapline.local.local_execution import open_local_job

SCHEMA = pa.schema([("n", pa.int64())])
NO_SOURCE: Any = "files"


class Subscribed(sl.GeneratorSource, sl.WithMasterCheckpointHook):
    """One with state of its own in the coordinator."""

    def create_master_trigger_restore_hook(self) -> sl.MasterTriggerRestoreHook[object]:
        raise NotImplementedError


def numbers(start: int, count: int, splits: int = 3) -> CollectionSource:
    """A source of so many numbers from this one on."""
    return CollectionSource(pa.table({"n": range(start, start + count)}, SCHEMA).to_batches(7), splits=splits)


def files(directory: Path, start: int, count: int) -> FileSource:
    """A source of files with ten numbers each."""
    directory.mkdir()
    for first in range(start, start + count, 10):
        lines = "".join(json.dumps({"n": n}) + "\n" for n in range(first, first + 10))
        (directory / f"{first:06}.json").write_text(lines)
    return FileSource(directory, JsonFormat(SCHEMA), batch_rows=4, order="path")


def parquet(path: Path, start: int, count: int) -> sl.ParquetSource:
    """A source of row groups with ten numbers each."""
    pq.write_table(pa.table({"n": range(start, start + count)}, SCHEMA), path, row_group_size=10)
    return sl.ParquetSource(path, batch_rows=4)


def environment_of(source: HybridSource, tmp_path: Path, parallelism: int) -> sl.StreamExecutionEnvironment:
    environment = sl.StreamExecutionEnvironment.get_execution_environment(
        {"execution.checkpointing.dir": str(tmp_path / "checkpoints"), "execution.checkpointing.interval": "20 ms"}
    )
    environment.set_parallelism(parallelism)
    environment.from_source(source, uid="in").sink_to(sl.ParquetSink(tmp_path / "out"), uid="out")
    return environment


def committed(tmp_path: Path) -> list[int]:
    """What came out, in no order."""
    found = [pq.read_table(path)["n"].to_pylist() for path in (tmp_path / "out").glob("*.parquet")]
    return [n for part in found for n in part]


def test_a_phase_begins_when_the_one_before_was_read(tmp_path: Path) -> None:
    """What each look returns, and from its state any other enumerator goes on; files are given one at a time."""
    sources = (files(tmp_path / "in", 0, 20), numbers(100, 30), numbers(200, 10, 1))
    state: dict[str, Any] = {}
    looks = []
    for _ in range(3):
        found = HybridEnumerator(sources).discover(state)
        state = found.state
        looks.append((len(found.splits), found.after_all_read, found.at_once, found.finished, state["phase"]))
    assert [(2, True, 1, False, 1), (3, True, None, False, 2), (1, False, None, True, 2)] == looks


def test_rows_of_all_sources_come_once_each_phase_behind_the_one_before(tmp_path: Path) -> None:
    """Files, row groups, generated rows and a collection, read by one reader in their order."""
    source = HybridSource(
        files(tmp_path / "in", 0, 200), parquet(tmp_path / "a", 200, 100), numbers(300, 50), numbers(350, 50)
    )
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(1)
    rows = environment.from_source(source, uid="in").execute_and_collect(local=True, threads=1)
    found = [row["n"] for row in rows]
    assert list(range(400)) == sorted(found)
    assert [0, 1, 2, 3] == [phase for phase, first in _phases(found)]
    assert list(range(300)) == found[:300]


def _phases(found: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of numbers that belong to one source."""
    runs: list[tuple[int, int]] = []
    for n in found:
        phase = 0 if n < 200 else 1 if n < 300 else 2 if n < 350 else 3
        if not runs or runs[-1][0] != phase:
            runs.append((phase, n))
    return runs


@pytest.mark.parametrize(
    "least",
    [1, pytest.param(200, marks=pytest.mark.rare), 390, pytest.param(700, marks=pytest.mark.rare)],
)
def test_a_savepoint_in_any_phase_and_another_parallelism(tmp_path: Path, least: int) -> None:
    """The switch is part of the snapshot: nothing of a phase that was read comes again."""

    def source(*, again: bool = False) -> HybridSource:
        if not again:
            files(tmp_path / "in", 0, 400)
            parquet(tmp_path / "a", 400, 400)
        return HybridSource(
            FileSource(tmp_path / "in", JsonFormat(SCHEMA), batch_rows=4),
            sl.ParquetSource(tmp_path / "a", batch_rows=4, rows_per_second=2_000),
        )

    with open_local_job(environment_of(source(), tmp_path, 2), "hybrid", 1) as job:
        job.run(until=lambda: len(committed(tmp_path)) >= least)
        stopped = job.operate(StopWithSavepoint(str(tmp_path / "savepoints")))
    assert isinstance(stopped, SnapshotCompleted)
    resumed = environment_of(source(again=True), tmp_path, 3).restore_from(stopped.path)
    assert resumed.execute("hybrid", local=True).status == "FINISHED"
    assert list(range(800)) == sorted(committed(tmp_path))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: HybridSource(numbers(0, 1)), "give at least two sources"),
        (lambda: HybridSource(numbers(0, 1), NO_SOURCE), "source 1 is 'files'; give sources that are not hybrid"),
        (lambda: HybridSource(sl.GeneratorSource(keys=1), numbers(0, 1)), "source 0, GeneratorSource, has no end"),
        (
            lambda: HybridSource(numbers(0, 1), Subscribed(keys=1)),
            "source 1, Subscribed, brings a master hook, which nobody would ask here",
        ),
        (
            lambda: HybridSource(numbers(0, 1), sl.GeneratorSource(keys=1)).schema(),
            "column 'n' is int64 in source 0, Coll",
        ),
    ],
)
def test_wrong_sources_are_refused_in_one_line(make: Any, why: str) -> None:
    """On the driver, before a job starts."""
    with pytest.raises(ConnectorError, match=why):
        make()


def collected(source: HybridSource, parallelism: int, strategy: sl.WatermarkStrategy | None = None) -> list[int]:
    """What a local job reads of it, sorted."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    rows = environment.from_source(source, strategy, uid="in").execute_and_collect(local=True)
    return sorted(row["n"] for row in rows)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_scripts_that_come_one_after_the_other_are_all_played(parallelism: int) -> None:
    """The enumerator hands out one split at a time, and the reader of a script took the last one for the only one."""
    history = ScriptedSource([{"n": 1}, {"n": 2}], [{"n": 3}], [{"n": 4}, {"n": 5}])
    assert [1, 2, 3, 4, 5, 6, 7] == collected(HybridSource(history, numbers(6, 2)), parallelism)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_split_that_is_ahead_does_not_wait_for_what_comes_only_after_it(parallelism: int) -> None:
    """Splits of the second source hold the watermark back, and begin when those of the first have ended."""
    strategy = sl.WatermarkStrategy.for_monotonous_timestamps("n").with_watermark_alignment("all", 0, 1)
    assert [1, 5, 9] == collected(
        HybridSource(ScriptedSource([{"n": 5}, {"n": 9}]), numbers(1, 1)), parallelism, strategy
    )


def test_a_snapshot_of_more_sources_is_refused() -> None:
    """A job that had come to the third of three sources goes on with two: that was an IndexError."""
    source = HybridSource(numbers(0, 1), numbers(1, 1))
    with pytest.raises(
        ConnectorError, match="has come to source 2, and there are 2; give the sources that the job had"
    ):
        HybridEnumerator(source.sources).discover({"phase": 2})
