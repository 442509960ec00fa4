"""Unaligned and triggered: channels remember their data in flight until their barrier comes. Mirrors Flink's
AlternatingCollectingBarriersUnaligned."""

from __future__ import annotations

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import BarrierState, Controller
from snapline.taskmanager.checkpointing.barrier_states.unaligned import (
    UnalignedBarrierHandlerState,
    count_unaligned,
    stop_unaligned,
)
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class CollectingBarriersUnaligned(UnalignedBarrierHandlerState):
    """Channels that delivered an aligned barrier are blocked, all others run."""

    def __init__(self, *, alternating: bool) -> None:
        if alternating:
            self.here = BarrierState.ALTERNATING_COLLECTING_BARRIERS_UNALIGNED
            self.waiting = BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER
        else:
            self.here = BarrierState.COLLECTING_BARRIERS_UNALIGNED
            self.waiting = BarrierState.WAITING_FOR_FIRST_BARRIER_UNALIGNED

    def barrier_received(
        self, controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier
    ) -> BarrierState:
        """One more; hand over what was remembered when it was the last."""
        return count_unaligned(controller, channel, barrier, collecting=self.here, waiting=self.waiting)

    def end_of_partition_received(self, controller: Controller, channel: InputChannelInfo) -> BarrierState:
        """The end counts as the barrier."""
        controller.channel_finished(channel)
        if controller.all_barriers_received:
            return stop_unaligned(controller, controller.pending_barrier.checkpoint_id, self.waiting, completed=True)
        return self.here

    def abort(self, controller: Controller, checkpoint_id: CheckpointID) -> BarrierState:
        """Forget which channels were announced, because the checkpoint was aborted."""
        return stop_unaligned(controller, checkpoint_id, self.waiting, completed=False)
