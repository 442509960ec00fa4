"""What the two states of the aligner share: block on each barrier, snapshot on the last, then let all go on. Mirrors
Flink's AbstractAlignedBarrierHandlerState."""

from __future__ import annotations

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.ids import CheckpointID
from snapline.runtime.cores.machine import check
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import (
    BarrierHandlerState,
    BarrierState,
    Controller,
)
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class AlignedBarrierHandlerState(BarrierHandlerState):
    """Aligned, and never anything else."""

    here: BarrierState

    def announcement_received(
        self, controller: Controller, channel: InputChannelInfo, sequence_number: int
    ) -> BarrierState:
        """Announcements matter to those who can time out."""
        return self.here

    def barrier_received(
        self, controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier
    ) -> BarrierState:
        """Block the channel; snapshot when it was the last."""
        check(
            not barrier.options.is_unaligned,
            f"the aligner got an unaligned barrier of checkpoint {barrier.checkpoint_id}: "
            "the tasks of this job disagree about execution.checkpointing.unaligned.enabled",
        )
        controller.block_channel(channel)
        if controller.all_barriers_received:
            return self.trigger_and_release(controller, barrier)
        return BarrierState.COLLECTING_BARRIERS

    def aligned_checkpoint_timeout(self, controller: Controller, barrier: CheckpointBarrier) -> BarrierState:
        """Cannot happen: no timer is started."""
        check(condition=False, why="an alignment that is not alternating cannot time out")
        return self.here

    def abort(self, controller: Controller, checkpoint_id: CheckpointID) -> BarrierState:
        """Unblock all channels, because the checkpoint was aborted."""
        controller.unblock_all_channels()
        return BarrierState.WAITING_FOR_FIRST_BARRIER

    def trigger_and_release(self, controller: Controller, barrier: CheckpointBarrier) -> BarrierState:
        """Snapshot, then all channels go on."""
        controller.trigger_global_checkpoint(barrier)
        controller.unblock_all_channels()
        return BarrierState.WAITING_FOR_FIRST_BARRIER
