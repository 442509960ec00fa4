"""Positions of a source that are published outside (committed to Kafka, say) once their checkpoint is complete.

Decides which positions belong to which checkpoint, which of them a completed checkpoint publishes, and that a published
position never moves backwards. It does not know how to publish: the caller does with what `notify_checkpoint_complete`
returns. Snapshots hold the positions whether they are published or not; publishing only lets others see the progress.
Mirrors the `pendingOffsetsToCommit` of Flink's FlinkKafkaConsumerBase.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_PENDING_CHECKPOINTS = 100
"""Checkpoints whose positions are remembered; the oldest are dropped first (a later one covers them)."""


class CheckpointedOffsets:
    """Current positions by partition, and those bound to checkpoints that may still complete."""

    def __init__(
        self,
        restored: Mapping[str, int] | None = None,
        *,
        commit_on_checkpoints: bool = True,
        max_pending: int = MAX_PENDING_CHECKPOINTS,
    ) -> None:
        """`restored` is what a snapshot held; until `update` is called, snapshots repeat it."""
        if max_pending < 1:
            raise ValueError(f"max_pending must be positive, got {max_pending}")
        self._current: dict[str, int] = dict(restored or {})
        self._commit_on_checkpoints = commit_on_checkpoints
        self._max_pending = max_pending
        self._pending: dict[int, dict[str, int]] = {}
        self._published: dict[str, int] = {}
        self._running = True

    @property
    def current(self) -> Mapping[str, int]:
        """The position of each partition."""
        return dict(self._current)

    @property
    def pending_checkpoints(self) -> tuple[int, ...]:
        """Checkpoints that wait for their confirmation, oldest first."""
        return tuple(self._pending)

    @property
    def is_running(self) -> bool:
        """False after `stop`: snapshots and notifications are ignored."""
        return self._running

    def update(self, offsets: Mapping[str, int]) -> None:
        """The source has emitted up to these positions; partitions that are not named stay where they are."""
        self._current.update(offsets)

    def snapshot(self, checkpoint_id: int) -> dict[str, int] | None:
        """Bind the positions to the checkpoint, and return them for the snapshot. None after `stop`."""
        if not self._running:
            return None
        offsets = dict(self._current)
        if self._commit_on_checkpoints:
            self._pending.pop(checkpoint_id, None)
            self._pending[checkpoint_id] = offsets
            while len(self._pending) > self._max_pending:
                del self._pending[next(iter(self._pending))]
        return offsets

    def notify_checkpoint_complete(self, checkpoint_id: int) -> dict[str, int] | None:
        """The positions to publish now, or None: publishing is off, the checkpoint is unknown (a later one was
        confirmed first), or nothing moved forward."""
        if not self._running or checkpoint_id not in self._pending:
            return None
        offsets = self._pending[checkpoint_id]
        self._pending = {pending: held for pending, held in self._pending.items() if pending > checkpoint_id}
        published = self._published
        ahead = {name: offset for name, offset in offsets.items() if offset >= published.get(name, offset)}
        published.update(ahead)
        return ahead or None

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Nothing of this checkpoint will be published; the next one covers it."""
        self._pending.pop(checkpoint_id, None)

    def stop(self) -> None:
        """The source has ended or was cancelled."""
        self._running = False
        self._pending.clear()
