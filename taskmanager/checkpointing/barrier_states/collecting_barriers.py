"""Aligned checkpoints: at least one barrier has come, and its channel waits for the others. Mirrors Flink's
CollectingBarriers."""

from __future__ import annotations

from snapline.taskmanager.checkpointing.barrier_states.aligned import AlignedBarrierHandlerState
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import BarrierState, Controller
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class CollectingBarriers(AlignedBarrierHandlerState):
    """Every channel whose barrier has come is blocked."""

    here = BarrierState.COLLECTING_BARRIERS

    def end_of_partition_received(self, controller: Controller, channel: InputChannelInfo) -> BarrierState:
        """The end counts as the barrier; it may have been the last one."""
        controller.channel_finished(channel)
        if controller.all_barriers_received:
            return self.trigger_and_release(controller, controller.pending_barrier)
        return self.here
