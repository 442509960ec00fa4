"""Unaligned: the first barrier triggers. In the alternating handler: the timeout passed before any barrier came.
Mirrors Flink's AlternatingWaitingForFirstBarrierUnaligned."""

from __future__ import annotations

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import BarrierState, Controller
from snapline.taskmanager.checkpointing.barrier_states.unaligned import (
    UnalignedBarrierHandlerState,
    count_unaligned,
    hold_channel,
    start_unaligned,
)
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class WaitingForFirstBarrierUnaligned(UnalignedBarrierHandlerState):
    """Nothing is blocked, nothing is remembered."""

    def __init__(self, *, alternating: bool) -> None:
        if alternating:
            self.here = BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER_UNALIGNED
            self.waiting = BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER
            self._collecting = BarrierState.ALTERNATING_COLLECTING_BARRIERS_UNALIGNED
        else:
            self.here = self.waiting = BarrierState.WAITING_FOR_FIRST_BARRIER_UNALIGNED
            self._collecting = BarrierState.COLLECTING_BARRIERS_UNALIGNED

    def barrier_received(
        self, controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier
    ) -> BarrierState:
        """Snapshot now, unless barriers are missing that nothing may overtake."""
        if not controller.may_overtake:
            hold_channel(controller, channel, barrier)
            return BarrierState.ALTERNATING_WAITING_FOR_ALIGNED_CHANNELS
        start_unaligned(controller, barrier)
        return count_unaligned(controller, channel, barrier, collecting=self._collecting, waiting=self.waiting)

    def end_of_partition_received(self, controller: Controller, channel: InputChannelInfo) -> BarrierState:
        """The others are still waited for."""
        controller.channel_finished(channel)
        return self.here

    def abort(self, controller: Controller, checkpoint_id: CheckpointID) -> BarrierState:
        """Stay in this state, because nothing has been triggered."""
        controller.unblock_all_channels()
        controller.reset_channels()
        return self.waiting
