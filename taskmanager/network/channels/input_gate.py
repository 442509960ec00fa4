"""The input side of a task: which channel is polled next, which must wait, and what is in flight for a checkpoint.

`InputGate` reads the channels of one edge, `UnionInputGate` all gates of the task. A channel that has more goes to the
end of the line, one with a priority element to its front. Of those that wait the one with the lowest watermark comes
first, because what the others have is kept in windows and joins until it has caught up; but each eighth turn is that of
the first in the line, so that no channel waits for ever. Where the operator says how far a channel may be ahead, one
that is further waits a moment also for a channel that has nothing yet (`LeadLimit`). A channel stops by itself behind
an aligned barrier, at both of its ends; here is only written down which ones the barrier handler holds. What barriers
mean is the barrier handler's business. Pure: the shell collects notifications from other threads and calls
`notify_channel_non_empty` on the task's thread. Mirrors Flink's SingleInputGate and UnionInputGate, which take all
channels in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pyarrow as pa

from snapline.dataflow.elements import (
    MIN_WATERMARK_MS,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import QueueFigures
from snapline.runtime.cores.machine import check
from snapline.taskmanager.network.channels.channel_state_persister import ChannelStatePersister
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog, InputChannel, InputChannelInfo
from snapline.taskmanager.network.channels.lead_limit import LeadLimit
from snapline.taskmanager.network.channels.prioritized_deque import PrioritizedDeque
from snapline.taskmanager.network.channels.queue_figures import together

TURNS = 8
"""The first channel in the line has one turn of so many, whatever the watermarks."""
LOOKED_AT = 8
"""The lowest watermark is that of the first channels in the line, so many of them: a turn must not cost more with more
channels."""
RESTORED_SEQUENCE_NUMBER = -1
"""The number of restored batches, which were numbered in another life."""


@dataclass(frozen=True, slots=True)
class BufferOrEvent:
    """One element and the channel that it came from (Flink: BufferOrEvent)."""

    element: StreamElement
    channel: InputChannelInfo
    sequence_number: int
    is_priority: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """One channel's place in the line; compared by identity."""

    channel_index: int


class InputGate:
    """The channels of one logical input. Not thread-safe."""

    def __init__(self, gate_index: int, channels: Sequence[InputChannel], tolerated_lead_ms: int | None = None) -> None:
        """`tolerated_lead_ms`: a channel that is further ahead of another in event time waits for it a moment."""
        self.gate_index = gate_index
        self._channels = tuple(channels)
        self.max_batch_rows = 1 << 62
        """A batch with more is cut: what is left of it stays at the front of its channel."""
        # : At the front of their channel, behind its restored data: polled when a priority element was looked for and
        # not one,
        #: or left of a batch that was cut.
        self._early: dict[int, deque[BufferAndBacklog]] = {}
        #: Restored data in flight that has not been polled, by channel.
        self._restored: dict[int, deque[pa.RecordBatch]] = {}
        self._infos = tuple(InputChannelInfo(gate_index, index) for index in range(len(self._channels)))
        self._persisters = tuple(ChannelStatePersister() for _ in self._channels)
        self._line: PrioritizedDeque[_Line] = PrioritizedDeque()
        #: Place in the line of all and only the channels that stand in it.
        self._places: dict[int, _Line] = {}
        self._blocked: set[int] = set()
        #: Their last barrier came before what it overtook, which follows it also when they are blocked.
        self._overtaken: set[int] = set()
        #: Nothing of these is polled, whatever they have.
        self._held: set[int] = set()
        #: Of these, those that had a priority element when it was their turn.
        self._urgent: set[int] = set()
        self._ended: set[int] = set()
        self._lead = LeadLimit(len(self._channels), tolerated_lead_ms)
        self._limits_lead = tolerated_lead_ms is not None and len(self._channels) > 1
        self.waits_until_ms: int | None = None
        """Channels have something, and wait for one that is behind; None: what there was is polled."""
        self._turn = 0
        self._data_ended: dict[int, bool] = {}
        for index in range(len(self._channels)):
            self.notify_channel_non_empty(index, priority=False)

    def limit_batches(self, rows: int) -> None:
        """A batch with more rows is cut from now on, and channels put none with more together."""
        self.max_batch_rows = rows
        for channel in self._channels:
            channel.gather_at_most(rows)

    def restore(self, channel_index: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Data that was in flight in the snapshot: polled before anything new of this channel. Before the first
        poll."""
        check(channel_index not in self._restored, f"channel {channel_index} is restored twice")
        if batches:
            self._restored[channel_index] = deque(batches)

    # --- availability -------------------------------------------------------------------------------------------------

    def notify_channel_non_empty(self, channel_index: int, *, priority: bool) -> None:
        """Something can be polled from this channel."""
        if channel_index in self._ended:
            return
        place = self._places.get(channel_index)
        if place is None:
            place = self._places[channel_index] = _Line(channel_index)
            self._line.add(place, priority=priority)
        elif priority:
            self._line.prioritize(place)

    @property
    def has_available_channel(self) -> bool:
        """Whether polling may return something. After a notification it may also turn out that there is nothing."""
        return len(self._line) > 0

    @property
    def has_priority_channel(self) -> bool:
        """Whether some channel in the line has a priority element."""
        return self._line.num_priority_elements > 0

    # --- polling ------------------------------------------------------------------------------------------------------

    def poll_next(self, now_ms: int = 0) -> BufferOrEvent | None:
        """The next element of the first channel in the line that has one; a priority element before what waits at the
        front of its channel. `now_ms`: needed where leads are limited."""
        if self._early and self.has_priority_channel:
            polled = self.poll_priority()
            if polled is not None:
                return polled
        if self._limits_lead:
            self.waits_until_ms = self._wait_until(now_ms)
            if self.waits_until_ms is not None:
                return None
        while self._places and (channel_index := self._first_in_line()) is not None:
            polled = self.poll_channel(channel_index)
            if polled is not None:
                return polled
        return None

    def _wait_until(self, now_ms: int) -> int | None:
        """Until when nothing is polled, because all that have something are too far ahead. While a barrier is aligned
        nobody waits: the channel that is behind may stand at it."""
        if not self._places or self._blocked or self._held or self._restored or self.has_priority_channel:
            self._lead.go_on()
            return None
        looked_at = [place.channel_index for place in islice(self._line, LOOKED_AT)]
        return self._lead.wait_until(looked_at, self._places, now_ms)

    def poll_priority(self) -> BufferOrEvent | None:
        """The next priority element, None when there is none; never anything else. A channel that said it had one may
        have been polled since: what it gives instead is kept for its turn."""
        while self.has_priority_channel:
            channel_index = self._first_in_line()
            if channel_index is None or channel_index in self._ended or channel_index in self._held:
                continue
            polled = self._channels[channel_index].poll() if channel_index not in self._restored else None
            if polled is not None and polled.is_priority:
                return self._take(channel_index, polled)
            if polled is not None:
                self._early.setdefault(channel_index, deque()).append(polled)
            self.notify_channel_non_empty(channel_index, priority=False)
        return None

    def poll_channel(self, channel_index: int) -> BufferOrEvent | None:
        """The next element of this channel, None when it has none, is held, or stops behind an aligned barrier."""
        if channel_index in self._ended or channel_index in self._held:
            return None
        if channel_index in self._restored:
            return self._poll_restored(channel_index)
        early = self._early.get(channel_index)
        if early:
            polled: BufferAndBacklog | None = early.popleft()
            self.notify_channel_non_empty(channel_index, priority=False)
        else:
            polled = self._channels[channel_index].poll()
        if polled is None:
            return None
        if isinstance(polled.element, pa.RecordBatch) and polled.element.num_rows > self.max_batch_rows:
            polled = self._cut(channel_index, polled, polled.element)
        return self._take(channel_index, polled)

    def _cut(self, channel_index: int, polled: BufferAndBacklog, batch: pa.RecordBatch) -> BufferAndBacklog:
        rest = replace(polled, element=batch.slice(self.max_batch_rows), more_available=False, more_priority=False)
        self._early.setdefault(channel_index, deque()).appendleft(rest)
        return replace(polled, element=batch.slice(0, self.max_batch_rows), more_available=True)

    def _first_in_line(self) -> int | None:
        is_priority = self.has_priority_channel
        place = self._line.poll() if self._is_in_order() else self._furthest_behind()
        if place is None:
            return None
        del self._places[place.channel_index]
        if is_priority and place.channel_index in self._held:
            self._urgent.add(place.channel_index)
        return place.channel_index

    def _is_in_order(self) -> bool:
        """Whether the first in the line is the next; each time that there was a choice is a turn."""
        if len(self._line) < 2 or self._line.num_priority_elements:
            return True
        self._turn = (self._turn + 1) % TURNS
        return not self._turn

    def _furthest_behind(self) -> _Line:
        """Take the place of the lowest watermark out of the line; the first one, where it has had none yet."""
        places = islice(self._line, LOOKED_AT)
        least = next(places)
        reached = self._lead.reached_ms
        least_ms = reached[least.channel_index]
        for place in places:
            reached_ms = reached[place.channel_index]
            if MIN_WATERMARK_MS < reached_ms < least_ms:
                least, least_ms = place, reached_ms
        return self._line.get_and_remove(lambda place: place is least)

    def _take(self, channel_index: int, polled: BufferAndBacklog) -> BufferOrEvent:
        """An element has left its channel."""
        element = polled.element
        check(
            polled.is_priority or channel_index not in self._blocked or channel_index in self._overtaken,
            f"stream corrupt: {self._infos[channel_index]} is blocked, and something was polled from it",
        )
        persister = self._persisters[channel_index]
        if isinstance(element, pa.RecordBatch):
            persister.maybe_persist(element)
        elif isinstance(element, CheckpointBarrier):
            (self._overtaken.add if polled.is_priority else self._overtaken.discard)(channel_index)
            kept = [early.element for early in self._early.get(channel_index, ())] if polled.is_priority else []
            early_batches = [batch for batch in kept if isinstance(batch, pa.RecordBatch)]
            overtaken = [*early_batches, *self._channels[channel_index].inflight_batches()]
            persister.barrier_polled(element.checkpoint_id, overtaken)
        elif isinstance(element, Watermark):
            self._lead.rises(channel_index, element.timestamp_ms)
        elif isinstance(element, WatermarkStatus):
            (self._lead.leaves if element is WatermarkStatus.IDLE else self._lead.returns)(channel_index)
        elif isinstance(element, EndOfData):
            self._data_ended[channel_index] = element.drain
            self._lead.leaves(channel_index)
        elif isinstance(element, EndOfPartition):
            self._lead.leaves(channel_index)
            persister.end_of_partition_polled()
            self._ended.add(channel_index)
        if polled.more_available:
            self.notify_channel_non_empty(channel_index, priority=polled.more_priority)
        elif self._early.get(channel_index):
            self.notify_channel_non_empty(channel_index, priority=False)
        return BufferOrEvent(element, self._infos[channel_index], polled.sequence_number, polled.is_priority)

    def _poll_restored(self, channel_index: int) -> BufferOrEvent:
        """Nothing of the channel overtakes what was restored for it."""
        restored = self._restored[channel_index]
        batch = restored.popleft()
        if batch.num_rows > self.max_batch_rows:
            restored.appendleft(batch.slice(self.max_batch_rows))
            batch = batch.slice(0, self.max_batch_rows)
        if not restored:
            del self._restored[channel_index]
        self._persisters[channel_index].maybe_persist(batch)
        self.notify_channel_non_empty(channel_index, priority=False)
        return BufferOrEvent(batch, self._infos[channel_index], RESTORED_SEQUENCE_NUMBER, is_priority=False)

    # --- what the barrier handler asks for ----------------------------------------------------------------------------

    def block_consumption(self, channel_index: int) -> None:
        """The channel has delivered its aligned barrier, and waits for `resume_consumption`."""
        self._blocked.add(channel_index)

    def resume_consumption(self, channel_index: int) -> None:
        """Poll this channel again; its producer, which stopped behind the barrier, is told. A channel that the handler
        did not block may still have stopped: behind a barrier that came too late."""
        self._blocked.discard(channel_index)
        if channel_index in self._ended:
            return
        self._channels[channel_index].resume_consumption()
        self.notify_channel_non_empty(channel_index, priority=False)

    def hold_consumption(self, channel_index: int) -> None:
        """Poll nothing of this channel until `release_consumption`. What its last barrier overtook stays in flight."""
        self._held.add(channel_index)

    def release_consumption(self, channel_index: int) -> None:
        """Poll the channel again, which was held."""
        self._held.discard(channel_index)
        is_urgent = channel_index in self._urgent
        self._urgent.discard(channel_index)
        self.notify_channel_non_empty(channel_index, priority=is_urgent)

    def convert_to_priority(self, channel_index: int, sequence_number: int) -> None:
        """The announced barrier timed out: it is polled next."""
        check(channel_index not in self._ended, "convert_to_priority: the channel has ended")
        self._channels[channel_index].convert_to_priority(sequence_number)
        self.notify_channel_non_empty(channel_index, priority=True)

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """An unaligned checkpoint was triggered: remember what its barriers have not reached yet."""
        for index, channel in enumerate(self._channels):
            if index not in self._ended:
                self._persisters[index].start_persisting(barrier.checkpoint_id)
                channel.checkpoint_started(barrier)

    def checkpoint_stopped(self, checkpoint_id: CheckpointID) -> Mapping[InputChannelInfo, tuple[pa.RecordBatch, ...]]:
        """The checkpoint is over: what was remembered, without the channels that had nothing in flight."""
        remembered: dict[InputChannelInfo, tuple[pa.RecordBatch, ...]] = {}
        for index, channel in enumerate(self._channels):
            batches = self._persisters[index].stop_persisting(checkpoint_id)
            if batches:
                remembered[self._infos[index]] = batches
            if index not in self._ended:
                channel.checkpoint_stopped(checkpoint_id)
        return remembered

    # --- ends ---------------------------------------------------------------------------------------------------------

    @property
    def queued(self) -> QueueFigures:
        """What waits before the gate, restored batches as well; asked for from any thread."""
        early = [kept.element for channel in tuple(self._early.values()) for kept in tuple(channel)]
        restored = [batch for channel in tuple(self._restored.values()) for batch in tuple(channel)]
        kept = [batch for batch in (*early, *restored) if isinstance(batch, pa.RecordBatch)]
        own = QueueFigures(len(kept), sum(batch.nbytes for batch in kept))
        return together([own, *(channel.queued for channel in self._channels)])

    def release(self) -> None:
        """Close all channels of the gate, because its task is over."""
        for channel in self._channels:
            channel.release()
        self._line.clear()
        self._places.clear()

    @property
    def channel_infos(self) -> tuple[InputChannelInfo, ...]:
        """All channels, ended ones too."""
        return self._infos

    @property
    def number_of_channels(self) -> int:
        """All channels, ended ones too."""
        return len(self._channels)

    @property
    def blocked_channels(self) -> frozenset[int]:
        """Channels that wait behind their aligned barrier."""
        return frozenset(self._blocked)

    @property
    def is_recovered(self) -> bool:
        """Everything that was restored for its channels has been polled."""
        return not self._restored

    @property
    def open_channels(self) -> tuple[InputChannelInfo, ...]:
        """Channels that have not ended."""
        return tuple(info for info in self._infos if info.channel_index not in self._ended)

    @property
    def has_received_end_of_data(self) -> bool:
        """Every channel has said that no more rows follow."""
        return len(self._data_ended) == len(self._channels)

    @property
    def should_drain(self) -> bool:
        """Every channel ended its data for good, so that windows and timers are to be flushed."""
        return self.has_received_end_of_data and all(self._data_ended.values())

    @property
    def is_finished(self) -> bool:
        """Return whether every channel of the gate has ended."""
        return len(self._ended) == len(self._channels)


class UnionInputGate:
    """All gates of a task as one. Not thread-safe."""

    def __init__(self, gates: Sequence[InputGate]) -> None:
        self.gates = tuple(gates)
        """One gate per logical input, by index."""
        check(
            all(gate.gate_index == index for index, gate in enumerate(self.gates)),
            "gates must stand in the order of their index",
        )
        self._next = 0

    def poll_priority(self) -> BufferOrEvent | None:
        """The next priority element, None when there is none; never anything else."""
        for gate in self.gates:
            polled = gate.poll_priority()
            if polled is not None:
                return polled
        return None

    def poll_next(self, now_ms: int = 0) -> BufferOrEvent | None:
        """The next element: of a channel that said it had a priority element first, else of the gates in turn.
        `now_ms`: needed where leads are limited."""
        for gate in self.gates:
            if gate.has_priority_channel:
                polled = gate.poll_next(now_ms)
                if polled is not None:
                    return polled
        for _ in self.gates:
            gate = self.gates[self._next]
            self._next = (self._next + 1) % len(self.gates)
            polled = gate.poll_next(now_ms)
            if polled is not None:
                return polled
        return None

    @property
    def waits_until_ms(self) -> int | None:
        """Until when channels wait for one that is behind, of the gate that goes on first; None: none waits."""
        return min((gate.waits_until_ms for gate in self.gates if gate.waits_until_ms is not None), default=None)

    def notify_channel_non_empty(self, channel: InputChannelInfo, *, priority: bool) -> None:
        """Something can be polled from this channel."""
        self.gates[channel.gate_index].notify_channel_non_empty(channel.channel_index, priority=priority)

    def block_consumption(self, channel: InputChannelInfo) -> None:
        """The channel waits for `resume_consumption`."""
        self.gates[channel.gate_index].block_consumption(channel.channel_index)

    def resume_consumption(self, channel: InputChannelInfo) -> None:
        """Let the channel go on after its aligned barrier was handled."""
        self.gates[channel.gate_index].resume_consumption(channel.channel_index)

    def hold_consumption(self, channel: InputChannelInfo) -> None:
        """Nothing of the channel is polled."""
        self.gates[channel.gate_index].hold_consumption(channel.channel_index)

    def release_consumption(self, channel: InputChannelInfo) -> None:
        """Poll the channel again, which was held."""
        self.gates[channel.gate_index].release_consumption(channel.channel_index)

    def convert_to_priority(self, channel: InputChannelInfo, sequence_number: int) -> None:
        """The announced barrier timed out."""
        self.gates[channel.gate_index].convert_to_priority(channel.channel_index, sequence_number)

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """An unaligned checkpoint was triggered."""
        for gate in self.gates:
            gate.checkpoint_started(barrier)

    def checkpoint_stopped(self, checkpoint_id: CheckpointID) -> Mapping[InputChannelInfo, tuple[pa.RecordBatch, ...]]:
        """The checkpoint is over: what all gates remembered."""
        remembered: dict[InputChannelInfo, tuple[pa.RecordBatch, ...]] = {}
        for gate in self.gates:
            remembered.update(gate.checkpoint_stopped(checkpoint_id))
        return remembered

    @property
    def queued(self) -> QueueFigures:
        """What waits before all gates; asked for from any thread."""
        return together([gate.queued for gate in self.gates])

    def release(self) -> None:
        """Close all channels of all gates, because the task is over."""
        for gate in self.gates:
            gate.release()

    @property
    def number_of_channels(self) -> int:
        """Return how many channels all gates have."""
        return sum(gate.number_of_channels for gate in self.gates)

    @property
    def channel_infos(self) -> tuple[InputChannelInfo, ...]:
        """Return the channels of all gates, in their order."""
        return tuple(info for gate in self.gates for info in gate.channel_infos)

    @property
    def open_channels(self) -> tuple[InputChannelInfo, ...]:
        """Channels that have not ended, over all gates."""
        return tuple(info for gate in self.gates for info in gate.open_channels)

    @property
    def blocked_channels(self) -> frozenset[InputChannelInfo]:
        """Channels that wait behind their aligned barrier."""
        return frozenset(
            InputChannelInfo(gate.gate_index, index) for gate in self.gates for index in gate.blocked_channels
        )

    @property
    def has_priority_channel(self) -> bool:
        """Whether some channel has a priority element."""
        return any(gate.has_priority_channel for gate in self.gates)

    @property
    def has_available_channel(self) -> bool:
        """Whether polling may return something."""
        return any(gate.has_available_channel for gate in self.gates)

    @property
    def has_received_end_of_data(self) -> bool:
        """Every channel has said that no more rows follow."""
        return all(gate.has_received_end_of_data for gate in self.gates)

    @property
    def should_drain(self) -> bool:
        """Every channel ended its data for good."""
        return all(gate.should_drain for gate in self.gates)

    @property
    def is_finished(self) -> bool:
        """Return whether every channel of every gate has ended."""
        return all(gate.is_finished for gate in self.gates)
