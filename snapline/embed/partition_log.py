"""Where the progress of one partition lies: checkpoints that name how far it is, and files with its output so far.

Decides which checkpoint a partition goes on from: the one that is furthest, whoever wrote it. Each attempt writes files
of its own, and each checkpoint is whole by itself: how many rows, their digest, the function's state, the files of the
output. So a lost executor that still runs, or a speculative copy, disturbs nobody; Spark takes the output of one of
them. An attempt deletes its own older checkpoints; all else goes with the directory, since another attempt may read it.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from snapline.dataflow.columnar.validated import read_batches
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.storage.storage_port import Storage, StorageNotFound

_CHECKPOINT = re.compile(r"(?P<partition>p-\d{6})/(?P<kind>chk|end)-(?P<rows>\d{15})-[0-9a-f]{32}\.json")
_ROW_CLASSES = {
    ("pyspark.sql.types", "_create_row"),
    ("pyspark.sql.types", "Row"),
    ("datetime", "datetime"),
    ("datetime", "date"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("decimal", "Decimal"),
    ("builtins", "bytearray"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "complex"),
}
"""What rows of an RDD may be made of beside plain values: nothing else is loaded from a file."""


class ResumableError(SnaplineError):
    """A partition cannot go on from its checkpoint, or cannot take one; names the partition and the way out.

    >>> raise sl.ResumableError("score: partition 3: its state cannot be restored")
    Traceback (most recent call last):
    snapline.embed.partition_log.ResumableError: score: partition 3: its state cannot be restored
    """


@dataclass(frozen=True)
class PartitionProgress:
    """How far one partition is, as its latest checkpoint says.

    >>> same = sl.resumable(lambda rows: (row for row in rows), uid="same", directory=f"{tmp}/same")
    >>> list(same(iter("abc"))), [(each.partition, each.rows) for each in same.progress()]
    (['a', 'b', 'c'], [(0, 3)])
    """

    partition: int
    rows: int
    """Rows of its input that are done."""
    rows_out: int
    rows_per_second: float
    """Since its present attempt began."""
    remaining_s: float | None
    """At that rate; None: nobody has said how many rows there are."""
    attempt: int
    """How many attempts were begun before this one."""
    is_finished: bool
    updated_ms: int


@dataclass(frozen=True)
class PartitionCheckpoint:
    """All that a partition goes on from."""

    rows: int
    digest: str
    state: Any
    """What `snapshot` has returned, and None for a function without state."""
    segments: tuple[str, ...]
    """Files of the output so far, in order."""
    progress: PartitionProgress


class PartitionLog:
    """Reads and writes the checkpoints of one partition, for one attempt."""

    def __init__(self, storage: Storage, uid: str, partition: int) -> None:
        """`storage`: that of the function's directory."""
        self._storage = storage
        self._uid = uid
        self.partition = partition
        self._directory = f"p-{partition:06d}"
        self._attempt = uuid.uuid4().hex
        self._segments = 0
        self._last = ""

    def latest(self) -> PartitionCheckpoint | None:
        """The furthest checkpoint; None: there is none."""
        for _ in range(3):  # another attempt may delete what was just listed
            names = [match for path, _ in self._storage.list(self._directory) if (match := _CHECKPOINT.fullmatch(path))]
            if not names:
                return None
            best = max(names, key=lambda match: (match["kind"] == "end", match["rows"], match[0]))
            try:
                return _decode(self._storage.get(best[0]), best[0])
            except StorageNotFound:
                continue
        raise ResumableError(f"{self._uid}: partition {self.partition}: its checkpoints vanish while they are read")

    def append(self, items: list[Any]) -> str:
        """Write output, batches or rows, into a file of its own; its name."""
        name = f"{self._directory}/out-{self._attempt}-{self._segments:06d}"
        self._segments += 1
        if isinstance(items[0], pa.RecordBatch):
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, items[0].schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
                for batch in items:
                    writer.write_batch(batch)
            name, data = f"{name}.arrows", sink.getvalue()
        else:
            name, data = f"{name}.rows", pickle.dumps(items, protocol=5)
            try:
                _RowUnpickler(io.BytesIO(data)).load()
            except pickle.UnpicklingError as error:
                raise ResumableError(
                    f"{self._uid}: partition {self.partition}: {error}; let the function return plain values, tuples or Rows"
                ) from None
        self._storage.put(name, data)
        return name

    def read(self, segments: tuple[str, ...]) -> Iterator[Any]:
        """The output in these files."""
        for name in segments:
            data = self._storage.get(name)
            if name.endswith(".rows"):
                yield from _RowUnpickler(io.BytesIO(data)).load()
            else:
                yield from read_batches(data)

    def write(self, checkpoint: PartitionCheckpoint) -> None:
        """From now on the partition goes on from here."""
        kind = "end" if checkpoint.progress.is_finished else "chk"
        name = f"{self._directory}/{kind}-{checkpoint.rows:015d}-{self._attempt}.json"
        content = {**asdict(checkpoint), "segments": list(checkpoint.segments)}
        self._storage.put(name, json.dumps(content).encode())
        if self._last and self._last != name:
            self._storage.delete(self._last)
        self._last = name


def read_progress(storage: Storage) -> list[PartitionProgress]:
    """How far each partition is that has taken a checkpoint, by its number."""
    best: dict[str, re.Match[str]] = {}
    for path, _ in storage.list(""):
        match = _CHECKPOINT.fullmatch(path)
        if match is not None:
            now = best.get(match["partition"])
            if now is None or (match["kind"] == "end", match["rows"]) > (now["kind"] == "end", now["rows"]):
                best[match["partition"]] = match
    found = []
    for _, match in sorted(best.items()):
        try:
            found.append(_decode(storage.get(match[0]), match[0]).progress)
        except StorageNotFound:  # a newer one has just taken its place
            continue
    return found


def _decode(data: bytes, name: str) -> PartitionCheckpoint:
    try:
        content = json.loads(data)
        progress = PartitionProgress(**content.pop("progress"))
        return PartitionCheckpoint(**{**content, "segments": tuple(content["segments"])}, progress=progress)
    except (ValueError, TypeError, KeyError) as error:
        raise ResumableError(
            f"{name} is no checkpoint of a partition ({error}); delete it to start from an older one"
        ) from None


class _RowUnpickler(pickle.Unpickler):
    """Loads rows that are made of plain values only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ROW_CLASSES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a row holds an object of {module}.{name}, which is not kept in checkpoints")
