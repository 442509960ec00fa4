"""A job in small: numbers into a ParquetSink through the real SinkOperator, with checkpoints, deaths and restores.

The source is a counter whose position lies in the checkpoint, so after a restore the same numbers come again. A death
drops everything that is not on disk or in a completed checkpoint, without calling anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from snapline.connectors.files import output_files
from snapline.connectors.files.filesystems import Location
from snapline.connectors.files.output_files import LocalOutputFiles, OutputFiles
from snapline.connectors.parquet import ParquetSink
from snapline.dataflow.graph.operator_specs import SinkSpec
from snapline.dataflow.ids import CheckpointID, JobID, operator_id_of
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.taskmanager.operators.base.operator_contract import OperatorContext, RestoredState
from snapline.taskmanager.operators.sinks.sink_operator import SinkOperator
from snapline.taskmanager.state.outside.segment_space import MemorySegmentSpace

CONFIGURATION = {"execution.checkpointing.interval": "1 s"}


class Death(BaseException):
    """The process was killed here."""


class Fate:
    """Counts every step that touches the disk or crosses processes, and kills at the chosen one."""

    def __init__(self) -> None:
        self.steps = 0
        self.death_at: int | None = None

    def step(self) -> None:
        self.steps += 1
        if self.death_at is not None and self.steps >= self.death_at:
            self.death_at = None
            raise Death


class MortalOutputFiles(OutputFiles):
    """Every operation can be the last, before it and after it; a publication also between two files."""

    def __init__(self, inner: OutputFiles, fate: Fate) -> None:
        self.inner = inner
        self.fate = fate

    def _mortal(self, operation: Callable[[], Any]) -> Any:
        self.fate.step()
        result = operation()
        self.fate.step()
        return result

    def open(self, path: str) -> Any:
        return self._mortal(lambda: self.inner.open(path))

    def seal(self, path: str, sealed_path: str) -> None:
        self._mortal(lambda: self.inner.seal(path, sealed_path))

    def publish(self, files: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        missing: list[tuple[str, str]] = []
        for file in files:
            self.fate.step()
            missing += self.inner.publish([file])
            self.fate.step()
        return missing

    def read(self, path: str) -> Any:
        return self.inner.read(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def delete(self, path: str) -> None:
        self._mortal(lambda: self.inner.delete(path))

    def names(self, directory: str) -> list[str]:
        return list(self._mortal(lambda: self.inner.names(directory)))

    def has_partitions(self, directory: str) -> bool:
        return self._mortal(lambda: self.inner.has_partitions(directory))

    def remove_directory_if_empty(self, directory: str) -> None:
        self._mortal(lambda: self.inner.remove_directory_if_empty(directory))

    def prepare(self, directory: str) -> None:
        self._mortal(lambda: self.inner.prepare(directory))


@dataclass
class Completed:
    """A completed checkpoint."""

    checkpoint_id: int
    position: int
    lists: list[dict[str, tuple[bytes, ...]]]


@dataclass
class SinkJob:
    """One job over all its attempts."""

    directory: Path
    fate: Fate = field(default_factory=Fate)
    parallelism: int = 2
    roll_bytes: int = 1 << 30
    row_group_rows: int = 4
    position: int = 0
    checkpoint_id: int = 0
    attempt: int = 0
    completed: Completed | None = None
    committable_up_to: int = 0
    """Numbers below this lie in a completed checkpoint."""
    operators: list[SinkOperator] = field(default_factory=list)

    def install(self, monkeypatch: Any) -> None:
        """Make the sink's disk mortal."""

        def open_output(url: str, options: object) -> tuple[OutputFiles, Location]:
            return MortalOutputFiles(LocalOutputFiles(), self.fate), Location(None, url, "")

        monkeypatch.setattr(output_files, "open_output", open_output)

    def start(self, parallelism: int | None = None) -> None:
        """A new attempt from the last completed checkpoint."""
        old = self.parallelism
        self.parallelism = parallelism or old
        completed = self.completed
        self.position = completed.position if completed else 0
        shares: list[dict[str, list[bytes]]] = [{} for _ in range(self.parallelism)]
        turn = self.attempt  # split-distribute: any element may go to any subtask
        for lists in completed.lists if completed else ():
            for name, elements in lists.items():
                for element in elements:
                    shares[turn % self.parallelism].setdefault(name, []).append(element)
                    turn += 1
        self.operators = []
        for index in range(self.parallelism):
            operator = SinkOperator(SinkSpec(self._sink()))
            self.operators.append(operator)
            operator.setup(self._context(index), None)  # type: ignore[arg-type]  # a sink has no output
            restored = RestoredState()
            if completed:
                lists = {name: tuple(elements) for name, elements in shares[index].items()}
                restored = RestoredState(CheckpointID(completed.checkpoint_id), operator_lists=lists)
            operator.initialize_state(restored)
        for operator in reversed(self.operators):
            operator.open()

    def write(self, count: int) -> None:
        """So many numbers, spread over the subtasks."""
        numbers = range(self.position, self.position + count)
        for index, operator in enumerate(self.operators):
            mine = [number for number in numbers if number % self.parallelism == index]
            if mine:
                operator.process_batch(pa.record_batch({"n": pa.array(mine, pa.int64())}))
        self.position += count

    def checkpoint(self, *, complete: bool = True, notify: Sequence[int] | None = None) -> None:
        """Barrier, snapshot, acknowledgements, completion, notifications (of these subtasks; default all)."""
        self.checkpoint_id += 1
        checkpoint_id = CheckpointID(self.checkpoint_id)
        snapshots = []
        for operator in self.operators:
            operator.prepare_snapshot_pre_barrier(checkpoint_id)
            self.fate.step()
            snapshots.append(operator.snapshot_state(checkpoint_id, 0))
            self.fate.step()  # acknowledge
        if not complete:
            for operator in self.operators:
                operator.notify_checkpoint_aborted(checkpoint_id)
            return
        self.completed = Completed(
            self.checkpoint_id,
            self.position,
            [{part.name: part.elements for part in snapshot.operator_lists} for snapshot in snapshots],
        )
        self.committable_up_to = self.position
        self.fate.step()
        for index in range(self.parallelism) if notify is None else notify:
            if index < self.parallelism:
                self.operators[index].notify_checkpoint_complete(checkpoint_id)
                self.fate.step()

    def die(self) -> None:
        """All processes at once; nothing is called."""
        self.operators = []
        self.attempt += 1

    def finish(self) -> None:
        """End of input, final checkpoint, close."""
        for operator in self.operators:
            operator.finish()
        self.checkpoint()
        self.close()

    def close(self) -> None:
        """The orderly end of all tasks."""
        for operator in self.operators:
            operator.close()
        self.operators = []

    def visible(self) -> list[int]:
        """What a reader of the directory sees."""
        return sorted(
            number
            for file in self.directory.glob("*.parquet")
            for number in pq.ParquetFile(file).read()["n"].to_pylist()
        )

    def staged(self) -> list[str]:
        """What is hidden."""
        return sorted(
            path.name for path in self.directory.rglob("*") if path.is_file() and path.parent != self.directory
        )

    def check_visible(self) -> None:
        """Nothing twice, and nothing that no completed checkpoint holds."""
        visible = self.visible()
        assert len(visible) == len(set(visible)), f"rows twice: {visible}"
        assert not visible or visible[-1] < self.committable_up_to, "rows of an incomplete checkpoint"

    def _sink(self) -> ParquetSink:
        return ParquetSink(
            self.directory, roll_bytes=self.roll_bytes, row_group_rows=self.row_group_rows, compression="none"
        )

    def _context(self, index: int) -> OperatorContext:
        return OperatorContext(
            job_id=JobID("job-1"),
            operator_id=operator_id_of("out"),
            operator_uid="out",
            operator_name="out",
            task_name="out",
            subtask_index=index,
            parallelism=self.parallelism,
            max_parallelism=128,
            attempt_number=self.attempt,
            execution_attempt=f"graph_out_{index}_{self.attempt}",
            key_group_range=KeyGroupRange(0, 127),
            processing_time=None,  # type: ignore[arg-type]  # a sink asks for no time
            configuration=CONFIGURATION,
            wake_up=lambda: None,
            open_segment_space=lambda *_: MemorySegmentSpace(),
        )
