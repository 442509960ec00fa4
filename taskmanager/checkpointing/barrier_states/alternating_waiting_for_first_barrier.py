"""Alternating handler, aligned: no barrier of the current checkpoint has come yet, or there is none. Mirrors Flink's
AlternatingWaitingForFirstBarrier."""

from __future__ import annotations

from snapline.dataflow.elements import CheckpointBarrier
from snapline.taskmanager.checkpointing.barrier_states.alternating_aligned import AlternatingAlignedBarrierHandlerState
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import BarrierState, Controller
from snapline.taskmanager.checkpointing.barrier_states.unaligned import count_unaligned, start_unaligned
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class AlternatingWaitingForFirstBarrier(AlternatingAlignedBarrierHandlerState):
    """Nothing is blocked; barriers may have been announced."""

    here = BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER

    def aligned_checkpoint_timeout(self, controller: Controller, barrier: CheckpointBarrier) -> BarrierState:
        """The announced barriers come next; the first of them triggers."""
        self.turn_unaligned(controller, barrier)
        return BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER_UNALIGNED

    def turn_unaligned(self, controller: Controller, barrier: CheckpointBarrier) -> None:
        """Only the barriers come forward."""
        controller.prioritize_all_announcements()

    def unaligned_barrier_received(
        self, controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier
    ) -> BarrierState:
        """Take the snapshot now, because this barrier is the first one."""
        start_unaligned(controller, barrier)
        return count_unaligned(
            controller,
            channel,
            barrier,
            collecting=BarrierState.ALTERNATING_COLLECTING_BARRIERS_UNALIGNED,
            waiting=BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER,
        )

    def end_of_partition_received(self, controller: Controller, channel: InputChannelInfo) -> BarrierState:
        """The others are still waited for."""
        controller.channel_finished(channel)
        return self.here
