"""A source that plays a script: for tests of jobs, a user's and ours.

The script is a list of batches, rows and signs. Decides when a sign takes effect: an `Abort` only in the attempt whose
turn it is (the first Abort of a script in attempt 0, the second in attempt 1, ...), so a job fails as often as the
script says and then goes on; a `Pause` for so long on the clock that the reader is told; `AwaitCheckpoint` until a
checkpoint taken after it was reached has completed; `End` ends the input there, and a script that ends with `Stall`
never ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from snapline.dataflow.api.connector_api import (
    InputStatus,
    Polled,
    Source,
    SourceContextInfo,
    SourceReader,
    SourceSplit,
)
from snapline.dataflow.columnar.python_values import table_of
from snapline.dataflow.errors import ConnectorError


class ScriptedAbort(RuntimeError):
    """The failure that an Abort sign causes.

    >>> raise sl_testing.ScriptedAbort("the script says: abort")
    Traceback (most recent call last):
    snapline.connectors.builtin.scripted.ScriptedAbort: the script says: abort
    """


@dataclass(frozen=True, slots=True)
class Abort:
    """A step of a script that fails the task where it stands; the second one of a script in the second attempt.

    >>> source = sl_testing.ScriptedSource([{"n": 1}, sl_testing.Abort("no disk")])
    """

    message: str = "the script says: abort"


@dataclass(frozen=True, slots=True)
class Pause:
    """Emit nothing for so long.

    >>> source = sl_testing.ScriptedSource([{"n": 1}, sl_testing.Pause(duration_ms=20), {"n": 2}])
    """

    duration_ms: int


@dataclass(frozen=True, slots=True)
class AwaitCheckpoint:
    """Emit nothing until a checkpoint completes whose snapshot was taken after everything before this sign was
    emitted.

    >>> source = sl_testing.ScriptedSource([{"n": 1}, sl_testing.AwaitCheckpoint(), {"n": 2}])
    """


@dataclass(frozen=True, slots=True)
class End:
    """The input ends, whatever follows in the script.

    >>> source = sl_testing.ScriptedSource([{"n": 1}, sl_testing.End(), {"n": 2}])
    """


@dataclass(frozen=True, slots=True)
class Stall:
    """Emit nothing any more, but do not end either.

    >>> sl_testing.ScriptedSource([{"n": 1}, sl_testing.Stall()]).bounded
    False
    """


Sign: TypeAlias = Abort | Pause | AwaitCheckpoint | End | Stall
ScriptItem: TypeAlias = pa.RecordBatch | Mapping[str, Any] | Sign
POLL_AGAIN_MS = 10


class ScriptedSource(Source):
    """Plays one script per split; a single script is one split. A script holds rows, batches and signs.

    >>> source = sl_testing.ScriptedSource([{"n": 1}, sl_testing.Abort(), {"n": 2}], [{"n": 3}])
    >>> env.from_source(source, uid="numbers").schema.names
    ['n']
    """

    def __init__(self, *scripts: Sequence[ScriptItem], schema: pa.Schema | None = None) -> None:
        """Rows become batches of one row; their types come from `schema`, else from the values."""
        if not scripts:
            raise ConnectorError("ScriptedSource: give at least one script")
        self._schema = schema
        self._scripts = tuple(tuple(self._item(item) for item in script) for script in scripts)
        self._unbounded = any(isinstance(item, Stall) for script in scripts for item in script)
        if self._schema is None:
            batches = [item for script in self._scripts for item in script if isinstance(item, pa.RecordBatch)]
            self._schema = batches[0].schema if batches else None

    @property
    def bounded(self) -> bool:
        return not self._unbounded

    def schema(self) -> pa.Schema | None:
        return self._schema

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return [SourceSplit(f"script-{number}", {"number": number}) for number in range(len(self._scripts))]

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return ScriptedReader(self._scripts, context.attempt_number)

    def _item(self, item: ScriptItem) -> pa.RecordBatch | Sign:
        if isinstance(item, Mapping):
            if self._schema is None:
                return pa.RecordBatch.from_pylist([dict(item)])
            try:
                return table_of([item], self._schema).to_batches()[0]
            except ValueError as error:
                raise ConnectorError(f"ScriptedSource: {item!r} does not fit schema= ({error})") from error
        if isinstance(item, (pa.RecordBatch, Abort, Pause, AwaitCheckpoint, End, Stall)):
            return item
        raise ConnectorError(f"ScriptedSource: a script holds batches, rows and signs, not {item!r}")


class _Player:
    """One script while it is being played: which step is next."""

    def __init__(self, split: SourceSplit, script: Sequence[pa.RecordBatch | Sign], attempt_number: int) -> None:
        self.split = split
        self.script = script
        self.position = int(split.position.get("items", 0))
        self.finished = split.finished
        self.attempt_number = attempt_number
        self.resume_at_ms: int | None = None
        self.snapshots: dict[int, int] = {}
        """Checkpoint id -> position, of checkpoints that may still complete."""
        self.confirmed = self.position if split.position else -1
        """Position in the newest completed checkpoint; at first, in the one that this attempt was restored from."""

    def advance(self, now_ms: int) -> pa.RecordBatch | None:
        """The next batch, or None when this script waits or has ended."""
        while not self.finished:
            if self.position >= len(self.script):
                self.finished = True
                break
            item = self.script[self.position]
            if isinstance(item, pa.RecordBatch):
                self.position += 1
                return item
            if not self._passes(item, now_ms):
                break
            self.position += 1
        return None

    def _passes(self, sign: Sign, now_ms: int) -> bool:
        """Whether the script goes on behind the sign."""
        if isinstance(sign, Abort):
            turn = sum(isinstance(item, Abort) for item in self.script[: self.position])
            if turn >= self.attempt_number:
                raise ScriptedAbort(sign.message)
            return True
        if isinstance(sign, Pause):
            if self.resume_at_ms is None:
                self.resume_at_ms = now_ms + sign.duration_ms
            if now_ms < self.resume_at_ms:
                return False
            self.resume_at_ms = None
            return True
        if isinstance(sign, AwaitCheckpoint):
            return self.confirmed >= self.position
        self.finished = isinstance(sign, End)
        return False


class ScriptedReader(SourceReader):
    """Plays the scripts of one subtask, one item of each in turn."""

    def __init__(self, scripts: Sequence[Sequence[pa.RecordBatch | Sign]], attempt_number: int) -> None:
        self._scripts = scripts
        self._attempt_number = attempt_number
        self._players: list[_Player] = []
        self._turn = 0
        self._paused: frozenset[str] = frozenset()

    def pause_splits(self, split_ids: Sequence[str]) -> None:
        self._paused = frozenset(split_ids)

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._players += [_Player(s, self._scripts[s.description["number"]], self._attempt_number) for s in splits]

    def poll_next(self, now_ms: int) -> Polled:
        ended: list[str] = []
        for _ in range(len(self._players)):
            player = self._players[self._turn % len(self._players)]
            self._turn += 1
            if player.split.split_id in self._paused:
                continue
            was_finished = player.finished
            batch = player.advance(now_ms)
            if player.finished and not was_finished:
                ended.append(player.split.split_id)
            if batch is not None:
                status = InputStatus.MORE_AVAILABLE
                return Polled(status, batch, split_id=player.split.split_id, finished_splits=tuple(ended))
        if all(player.finished for player in self._players):
            return Polled(InputStatus.END_OF_INPUT, finished_splits=tuple(ended))
        times = [player.resume_at_ms for player in self._players if player.resume_at_ms is not None]
        wake_at_ms = min(times, default=now_ms + POLL_AGAIN_MS)
        return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=wake_at_ms, finished_splits=tuple(ended))

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        for player in self._players:
            player.snapshots[checkpoint_id] = player.position
        return [
            SourceSplit(player.split.split_id, player.split.description, {"items": player.position}, player.finished)
            for player in self._players
        ]

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        for player in self._players:
            player.confirmed = max(player.confirmed, player.snapshots.get(checkpoint_id, -1))
            player.snapshots = {n: position for n, position in player.snapshots.items() if n > checkpoint_id}

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        for player in self._players:
            player.snapshots.pop(checkpoint_id, None)
