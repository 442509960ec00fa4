"""Which request for a checkpoint runs next: one question, asked when a request comes and whenever something ended.

Decides between execute, queue and drop from the queue's order, the number of pending checkpoints, the number of old
ones still being deleted, and the pause since the last completion. Knows nothing of what a checkpoint is. Mirrors
Flink's CheckpointRequestDecider of 1.14 and later: only periodic requests wait for the pause. Two differences: of
periodic requests one waits, and those that find it waiting are dropped, because one checkpoint answers them all
(decision 44); and ties that Flink breaks by identity hash are broken by arrival, so that a run can be replayed. Time is
an argument.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from snapline.coordinator.checkpoint.events import CheckpointRequestID
from snapline.coordinator.checkpoint.properties import CheckpointProperties
from snapline.dataflow.failures import CheckpointFailureReason

DEFAULT_MAX_QUEUED_REQUESTS = 1000
"""Bound of the queue: beyond it, periodic requests are dropped, youngest first, and then newcomers."""
DEFAULT_MAX_QUEUED_PERIODIC_REQUESTS = 1
"""So many of these may be periodic: more would be taken one after another as soon as there is room, without any work
between them."""


@dataclass(frozen=True, slots=True)
class CheckpointTriggerRequest:
    """One request that is waiting or being executed (Flink: CheckpointTriggerRequest)."""

    request_id: CheckpointRequestID
    properties: CheckpointProperties
    target_location: str
    is_periodic: bool
    timestamp_ms: int
    """When the request came, in milliseconds since the epoch."""
    sequence: int
    """Rises with every request; breaks ties."""
    repetition: int = 0
    """How often it was begun again, because a task finished that had to take part."""

    @property
    def priority(self) -> tuple[bool, bool, bool, int, int]:
        """Smallest first: savepoints, forced, of users, oldest."""
        return (
            not self.properties.is_savepoint,
            not self.properties.forced,
            self.is_periodic,
            self.timestamp_ms,
            self.sequence,
        )


@dataclass(frozen=True, slots=True)
class DeciderInputs:
    """What the answer depends on besides the queue."""

    is_triggering: bool
    """A request is between its start and its message to the tasks."""
    pending_count: int
    cleaning_count: int
    """Completed checkpoints that were given up and whose files are still being deleted."""
    last_completion_ms: int
    now_ms: int


@dataclass(slots=True)
class Decision:
    """What the decider wants done with the requests that it has."""

    chosen: CheckpointTriggerRequest | None = None
    """The request to execute now; None when all have to wait."""
    dropped: list[tuple[CheckpointTriggerRequest, CheckpointFailureReason]] = field(default_factory=list)
    reschedule_ms: int | None = None
    """Arm the periodic trigger for this many milliseconds from now: the pause is not over."""


class CheckpointRequestDecider:
    """The queue of requests, and who is next."""

    def __init__(
        self,
        max_concurrent_checkpoints: int,
        min_pause_ms: int,
        max_queued_requests: int = DEFAULT_MAX_QUEUED_REQUESTS,
        max_queued_periodic_requests: int = DEFAULT_MAX_QUEUED_PERIODIC_REQUESTS,
    ) -> None:
        """Raises ValueError for limits that admit nothing."""
        if min(max_concurrent_checkpoints, max_queued_requests, max_queued_periodic_requests) < 1 or min_pause_ms < 0:
            raise ValueError(
                f"at least one concurrent checkpoint ({max_concurrent_checkpoints}), one queued request "
                f"({max_queued_requests}), one of them periodic ({max_queued_periodic_requests}), and a pause of 0 ms or more "
                f"({min_pause_ms}) are needed"
            )
        self._max_concurrent = max_concurrent_checkpoints
        self._min_pause_ms = min_pause_ms
        self._max_queued = max_queued_requests
        self._max_queued_periodic = max_queued_periodic_requests
        self._queue: list[tuple[tuple[bool, bool, bool, int, int], CheckpointTriggerRequest]] = []
        """Sorted by priority; sequences make priorities unique."""

    @property
    def queued_count(self) -> int:
        """Return how many requests wait for their turn."""
        return len(self._queue)

    @property
    def has_synchronous(self) -> bool:
        """Return whether a savepoint that the job stops with waits for its turn."""
        return any(request.properties.is_synchronous for _, request in self._queue)

    def submit(self, request: CheckpointTriggerRequest, inputs: DeciderInputs) -> Decision:
        """Take a new request and say what runs now: this one, another one, or none."""
        decision = Decision()
        if request.is_periodic and self._queued_periodic_count >= self._max_queued_periodic:
            decision.dropped.append((request, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS))
            self._choose(inputs, decision)
            return decision
        if len(self._queue) >= self._max_queued and not self._queue[-1][1].is_periodic:
            # Only requests of users are waiting: they stay.
            decision.dropped.append((request, CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS))
            return decision
        insort(self._queue, (request.priority, request), key=lambda entry: entry[0])
        if len(self._queue) > self._max_queued:
            decision.dropped.append((self._queue.pop()[1], CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS))
        self._choose(inputs, decision)
        return decision

    def poll(self, inputs: DeciderInputs) -> Decision:
        """Something ended: say what of the queue runs now."""
        decision = Decision()
        self._choose(inputs, decision)
        return decision

    @property
    def _queued_periodic_count(self) -> int:
        return sum(request.is_periodic for _, request in self._queue)

    def abort_all(self) -> list[CheckpointTriggerRequest]:
        """Empty the queue; the caller fails what was in it."""
        requests = [request for _, request in self._queue]
        self._queue.clear()
        return requests

    def _choose(self, inputs: DeciderInputs, decision: Decision) -> None:
        if inputs.is_triggering or not self._queue or inputs.cleaning_count > self._max_concurrent:
            return
        first = self._queue[0][1]
        if inputs.pending_count >= self._max_concurrent:
            if first.properties.forced:
                decision.chosen = self._queue.pop(0)[1]
            return
        if first.is_periodic and not first.properties.forced:
            wait_ms = inputs.last_completion_ms + self._min_pause_ms - inputs.now_ms
            if wait_ms > 0:
                dropped = self._queue.pop(0)[1]
                decision.dropped.append((dropped, CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS))
                decision.reschedule_ms = wait_ms
                return
        decision.chosen = self._queue.pop(0)[1]
