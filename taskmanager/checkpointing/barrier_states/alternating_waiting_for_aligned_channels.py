"""Alternating handler, unaligned, and not triggered: the task has channels on which nothing may overtake data
(broadcast and rescale edges), and some of their barriers are missing. In Flink data in flight on such channels becomes
part of the snapshot, which can then not be rescaled."""

from __future__ import annotations

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.checkpointing.barrier_states.alternating_aligned import finish_checkpoint
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import (
    BarrierHandlerState,
    BarrierState,
    Controller,
)
from snapline.taskmanager.checkpointing.barrier_states.unaligned import hold_channel, start_unaligned, stop_unaligned
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class AlternatingWaitingForAlignedChannels(BarrierHandlerState):
    """Channels whose barrier has come are held, with what the barrier overtook; all others run."""

    here = BarrierState.ALTERNATING_WAITING_FOR_ALIGNED_CHANNELS

    def announcement_received(
        self, controller: Controller, channel: InputChannelInfo, sequence_number: int
    ) -> BarrierState:
        """Time is up already: the announced barrier comes next."""
        controller.convert_to_priority_event(channel, sequence_number)
        return self.here

    def barrier_received(
        self, controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier
    ) -> BarrierState:
        """One more; snapshot when it was the last that is waited for."""
        hold_channel(controller, channel, barrier)
        return self._snapshot_if_possible(controller)

    def aligned_checkpoint_timeout(self, controller: Controller, barrier: CheckpointBarrier) -> BarrierState:
        """Do nothing, because the checkpoint is unaligned already."""
        return self.here

    def end_of_partition_received(self, controller: Controller, channel: InputChannelInfo) -> BarrierState:
        """The end counts as the barrier."""
        controller.channel_finished(channel)
        return self._snapshot_if_possible(controller)

    def abort(self, controller: Controller, checkpoint_id: CheckpointID) -> BarrierState:
        """Nothing has been triggered; all channels go on."""
        controller.release_held_channels()
        return finish_checkpoint(controller)

    def _snapshot_if_possible(self, controller: Controller) -> BarrierState:
        if not controller.may_overtake:
            return self.here
        barrier = controller.pending_barrier
        start_unaligned(controller, barrier)
        controller.release_held_channels()
        if controller.all_barriers_received:
            waiting = BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER
            return stop_unaligned(controller, barrier.checkpoint_id, waiting, completed=True)
        return BarrierState.ALTERNATING_COLLECTING_BARRIERS_UNALIGNED
