"""What all unaligned states share: how an unaligned checkpoint begins and ends."""

from __future__ import annotations

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import (
    BarrierHandlerState,
    BarrierState,
    Controller,
)
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class UnalignedBarrierHandlerState(BarrierHandlerState):
    """Unaligned from the start or since the timeout; `waiting` is where a finished checkpoint leads."""

    here: BarrierState
    waiting: BarrierState

    def announcement_received(
        self, controller: Controller, channel: InputChannelInfo, sequence_number: int
    ) -> BarrierState:
        """Time is up already: the announced barrier comes next."""
        controller.convert_to_priority_event(channel, sequence_number)
        return self.here

    def aligned_checkpoint_timeout(self, controller: Controller, barrier: CheckpointBarrier) -> BarrierState:
        """Do nothing, because the checkpoint is unaligned already."""
        return self.here


def start_unaligned(controller: Controller, barrier: CheckpointBarrier) -> None:
    """Channels remember, then the task snapshots."""
    unaligned = barrier.as_unaligned()
    controller.start_inputs_checkpoint(unaligned)
    controller.trigger_global_checkpoint(unaligned)


def hold_channel(controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier) -> None:
    """The barrier has come, and the snapshot has to wait: with it waits what it overtook, which is to be part of that.
    Behind an aligned barrier the producer has stopped, too."""
    if barrier.options.needs_alignment:
        controller.block_channel(channel)
    controller.hold_channel(channel)


def stop_unaligned(
    controller: Controller, checkpoint_id: CheckpointID, waiting: BarrierState, *, completed: bool
) -> BarrierState:
    """Channels forget, or hand over; those that wait behind an aligned barrier go on."""
    controller.stop_inputs_checkpoint(checkpoint_id, completed=completed)
    controller.unblock_all_channels()
    controller.reset_channels()
    return waiting


def count_unaligned(
    controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier, *, collecting: BarrierState,
    waiting: BarrierState,
) -> BarrierState:  # fmt: skip
    """One more barrier of a checkpoint that has been triggered. One that is still aligned has stopped its channel, and
    is noted as blocked, so that the channel goes on when the checkpoint is over."""
    if barrier.options.needs_alignment:
        controller.block_channel(channel)
    if controller.all_barriers_received:
        return stop_unaligned(controller, barrier.checkpoint_id, waiting, completed=True)
    return collecting
