"""The task's input: gates with a barrier handler on them.

Decides nothing itself: it shows what concerns checkpoints to the handler, does what the handler wants of the gates, and
hands to the task the elements that operators see, and the effects that concern the snapshot, in order. After a restore
it lets nothing new through before all data in flight that was restored, for any channel, has been polled: otherwise new
rows of a key could come before restored ones, which may be on another channel since the job was rescaled. For the same
reason it tells those behind it (InputsRecovered) what is made of restored data, and what is new. Mirrors Flink's
CheckpointedInputGate with its UpstreamRecoveryTracker.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from snapline.dataflow.elements import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfChannelState,
    EndOfPartition,
    EventAnnouncement,
)
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.checkpointing.barrier_handler import CheckpointBarrierHandler
from snapline.taskmanager.checkpointing.checkpointing_contract import (
    BarrierHandlerEffect,
    BlockConsumption,
    CheckpointStarted,
    CheckpointStopped,
    ConvertToPriority,
    HoldConsumption,
    InputChannelStateCompleted,
    InputsRecovered,
    ReleaseConsumption,
    ResumeConsumption,
    TaskEffect,
)
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo
from snapline.taskmanager.network.channels.input_gate import BufferOrEvent, UnionInputGate


@dataclass(frozen=True, slots=True)
class PolledEvent:
    """What the barrier handler made of an element."""

    effects: tuple[TaskEffect, ...]
    """To be performed, in order, before the next poll, and before `ended` is processed."""
    ended: BufferOrEvent | None = None
    """The end of a partition, which the operators get to see, too."""


class CheckpointedInputGate:
    """Gates and handler of one task. All calls from the task's thread."""

    def __init__(self, gate: UnionInputGate, handler: CheckpointBarrierHandler) -> None:
        self.gate = gate
        self.handler = handler
        #: Channels that wait at an EndOfChannelState for the others, and whether it is their last one.
        self._recovered: dict[InputChannelInfo, bool] = {}

    def poll_next(self, now_ms: int, *, priority_only: bool = False) -> BufferOrEvent | PolledEvent | None:
        """The next element that operators see, or what the barrier handler made of one; None when nothing is available.
        `priority_only`: while the outputs have no room."""
        poll = self.gate.poll_priority if priority_only else self.gate.poll_next
        while (polled := poll()) is not None:
            result = self.process(polled, now_ms)
            if isinstance(result, BufferOrEvent) or result.effects or result.ended is not None:
                return result
        return None

    def process(self, polled: BufferOrEvent, now_ms: int) -> BufferOrEvent | PolledEvent:
        """Take one element that was polled from the gates."""
        element = polled.element
        if isinstance(element, pa.RecordBatch):
            self.handler.add_processed_bytes(element.nbytes)
            return polled
        if isinstance(element, CheckpointBarrier):
            return PolledEvent(self._perform(self.handler.process_barrier(element, polled.channel, now_ms)))
        if isinstance(element, EventAnnouncement):
            effects = self.handler.process_barrier_announcement(
                element.barrier, element.sequence_number, polled.channel, now_ms
            )
            return PolledEvent(self._perform(effects))
        if isinstance(element, CancelCheckpointMarker):
            effects = self.handler.process_cancellation_barrier(element, polled.channel, now_ms)
            return PolledEvent(self._perform(effects))
        if isinstance(element, EndOfPartition):
            recovered = self._resume_if_recovered()
            ended = self._perform(self.handler.process_end_of_partition(polled.channel, now_ms))
            return PolledEvent((*recovered, *ended), polled)
        if isinstance(element, EndOfChannelState):
            self._recovered[polled.channel] = element.is_last
            return PolledEvent(self._resume_if_recovered())
        return polled

    def timer_fired(self, key: Hashable, now_ms: int) -> tuple[TaskEffect, ...]:
        """A timer is due; those of others are ignored."""
        return self._perform(self.handler.timer_fired(key, now_ms))

    def abort_notified(self, checkpoint_id: CheckpointID, now_ms: int) -> tuple[TaskEffect, ...]:
        """The JobMaster has given the checkpoint up."""
        return self._perform(self.handler.process_abort_notification(checkpoint_id, now_ms))

    def close(self) -> tuple[TaskEffect, ...]:
        """End the barrier handler with the task; returns its last effects."""
        return self._perform(self.handler.close())

    def _resume_if_recovered(self) -> tuple[TaskEffect, ...]:
        """Once every channel has delivered its restored data, or ended, those go on that have more of it; when none
        has, all."""
        if not self._recovered or any(channel not in self._recovered for channel in self.gate.open_channels):
            return ()
        is_last = all(self._recovered.values())
        for channel in [channel for channel, is_its_last in self._recovered.items() if is_last or not is_its_last]:
            del self._recovered[channel]
            self.gate.resume_consumption(channel)
        return (InputsRecovered(is_last),)

    def _perform(self, effects: Iterable[BarrierHandlerEffect]) -> tuple[TaskEffect, ...]:
        """Do what concerns the gates, return the rest."""
        rest: list[TaskEffect] = []
        for effect in effects:
            match effect:
                case BlockConsumption(channel):
                    self.gate.block_consumption(channel)
                case ResumeConsumption(channel):
                    self.gate.resume_consumption(channel)
                case HoldConsumption(channel):
                    self.gate.hold_consumption(channel)
                case ReleaseConsumption(channel):
                    self.gate.release_consumption(channel)
                case ConvertToPriority(channel, sequence_number):
                    self.gate.convert_to_priority(channel, sequence_number)
                case CheckpointStarted(barrier):
                    self.gate.checkpoint_started(barrier)
                case CheckpointStopped(checkpoint_id, completed):
                    remembered = self.gate.checkpoint_stopped(checkpoint_id)
                    if completed:
                        rest.append(InputChannelStateCompleted(checkpoint_id, remembered))
                case _:
                    rest.append(effect)
        return tuple(rest)
