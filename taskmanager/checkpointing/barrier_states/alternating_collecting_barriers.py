"""Alternating handler, aligned: at least one barrier has come, and its channel waits. Mirrors Flink's
AlternatingCollectingBarriers."""

from __future__ import annotations

from snapline.dataflow.elements import CheckpointBarrier
from snapline.taskmanager.checkpointing.barrier_states.alternating_aligned import (
    AlternatingAlignedBarrierHandlerState,
    finish_checkpoint,
)
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import BarrierState, Controller
from snapline.taskmanager.checkpointing.barrier_states.unaligned import count_unaligned, start_unaligned
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class AlternatingCollectingBarriers(AlternatingAlignedBarrierHandlerState):
    """Every channel whose barrier has come is blocked; further barriers may have been announced."""

    here = BarrierState.ALTERNATING_COLLECTING_BARRIERS

    def aligned_checkpoint_timeout(self, controller: Controller, barrier: CheckpointBarrier) -> BarrierState:
        """Snapshot now, if all have come that nothing may overtake; the announced barriers come next."""
        if not controller.may_overtake:
            controller.prioritize_all_announcements()
            return BarrierState.ALTERNATING_WAITING_FOR_ALIGNED_CHANNELS
        self.turn_unaligned(controller, barrier)
        return BarrierState.ALTERNATING_COLLECTING_BARRIERS_UNALIGNED

    def turn_unaligned(self, controller: Controller, barrier: CheckpointBarrier) -> None:
        """Blocked channels stay so until all barriers have come: their producers have stopped there."""
        controller.prioritize_all_announcements()
        start_unaligned(controller, barrier)

    def unaligned_barrier_received(
        self, controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier
    ) -> BarrierState:
        """Count the barrier; the checkpoint was triggered by the first one."""
        return count_unaligned(
            controller,
            channel,
            barrier,
            collecting=BarrierState.ALTERNATING_COLLECTING_BARRIERS_UNALIGNED,
            waiting=BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER,
        )

    def end_of_partition_received(self, controller: Controller, channel: InputChannelInfo) -> BarrierState:
        """The end counts as the barrier; it may have been the last one, or come too late."""
        controller.channel_finished(channel)
        if controller.all_barriers_received:
            controller.trigger_global_checkpoint(controller.pending_barrier)
            return finish_checkpoint(controller)
        if controller.is_timed_out(controller.pending_barrier):
            return self.aligned_checkpoint_timeout(controller, controller.pending_barrier)
        return self.here
