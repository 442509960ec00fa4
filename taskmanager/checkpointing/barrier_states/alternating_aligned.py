"""What the two aligned states of the alternating handler share. Mirrors Flink's
AbstractAlternatingAlignedBarrierHandlerState."""

from __future__ import annotations

from abc import abstractmethod

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import (
    BarrierHandlerState,
    BarrierState,
    Controller,
)
from snapline.taskmanager.checkpointing.barrier_states.unaligned import hold_channel
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class AlternatingAlignedBarrierHandlerState(BarrierHandlerState):
    """Aligned so far; an unaligned barrier or the timeout changes that."""

    here: BarrierState

    def announcement_received(
        self, controller: Controller, channel: InputChannelInfo, sequence_number: int
    ) -> BarrierState:
        """Remember where the barrier is queued, to bring it forward when time is up."""
        controller.add_seen_announcement(channel, sequence_number)
        return self.here

    def barrier_received(
        self, controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier
    ) -> BarrierState:
        """Block the channel; snapshot when it was the last; go unaligned when the barrier is, or is too old."""
        if barrier.options.is_unaligned:
            return self._unaligned(controller, channel, barrier)
        controller.remove_seen_announcement(channel)
        controller.block_channel(channel)
        if controller.all_barriers_received:
            controller.trigger_global_checkpoint(barrier)
            return finish_checkpoint(controller)
        if controller.is_timed_out(barrier):
            return self._unaligned(controller, channel, barrier.as_unaligned())
        return BarrierState.ALTERNATING_COLLECTING_BARRIERS

    def _unaligned(self, controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier) -> BarrierState:
        if not controller.may_overtake:
            controller.prioritize_all_announcements()
            hold_channel(controller, channel, barrier)
            return BarrierState.ALTERNATING_WAITING_FOR_ALIGNED_CHANNELS
        self.turn_unaligned(controller, barrier)
        return self.unaligned_barrier_received(controller, channel, barrier)

    def abort(self, controller: Controller, checkpoint_id: CheckpointID) -> BarrierState:
        """Unblock all channels, because the checkpoint was aborted."""
        return finish_checkpoint(controller)

    @abstractmethod
    def turn_unaligned(self, controller: Controller, barrier: CheckpointBarrier) -> None:
        """Bring the announced barriers forward, and snapshot if a barrier has been processed before."""

    @abstractmethod
    def unaligned_barrier_received(
        self, controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier
    ) -> BarrierState:
        """What this barrier, unaligned by now, means after `turn_unaligned`."""


def finish_checkpoint(controller: Controller) -> BarrierState:
    """Aligned and over: all channels go on, announcements are forgotten."""
    controller.unblock_all_channels()
    controller.reset_channels()
    return BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER
