"""Aligned checkpoints: no barrier of the current checkpoint has come yet, or there is none. Mirrors Flink's
WaitingForFirstBarrier."""

from __future__ import annotations

from snapline.taskmanager.checkpointing.barrier_states.aligned import AlignedBarrierHandlerState
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import BarrierState, Controller
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class WaitingForFirstBarrier(AlignedBarrierHandlerState):
    """No barrier has come yet, and no channel is blocked."""

    here = BarrierState.WAITING_FOR_FIRST_BARRIER

    def end_of_partition_received(self, controller: Controller, channel: InputChannelInfo) -> BarrierState:
        """The others are still waited for."""
        controller.channel_finished(channel)
        return self.here
