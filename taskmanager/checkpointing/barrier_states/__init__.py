"""The states of SingleCheckpointBarrierHandler, one file each; `STATES` has the one object of each."""

from __future__ import annotations

from collections.abc import Mapping

from snapline.taskmanager.checkpointing.barrier_states.alternating_collecting_barriers import (
    AlternatingCollectingBarriers,
)
from snapline.taskmanager.checkpointing.barrier_states.alternating_waiting_for_aligned_channels import (
    AlternatingWaitingForAlignedChannels,
)
from snapline.taskmanager.checkpointing.barrier_states.alternating_waiting_for_first_barrier import (
    AlternatingWaitingForFirstBarrier,
)
from snapline.taskmanager.checkpointing.barrier_states.barrier_handler_state import (
    TRANSITIONS,
    BarrierEvent,
    BarrierHandlerState,
    BarrierState,
    Controller,
)
from snapline.taskmanager.checkpointing.barrier_states.collecting_barriers import CollectingBarriers
from snapline.taskmanager.checkpointing.barrier_states.collecting_barriers_unaligned import CollectingBarriersUnaligned
from snapline.taskmanager.checkpointing.barrier_states.waiting_for_first_barrier import WaitingForFirstBarrier
from snapline.taskmanager.checkpointing.barrier_states.waiting_for_first_barrier_unaligned import (
    WaitingForFirstBarrierUnaligned,
)

__all__ = ["STATES", "TRANSITIONS", "BarrierEvent", "BarrierHandlerState", "BarrierState", "Controller"]

STATES: Mapping[BarrierState, BarrierHandlerState] = {
    BarrierState.WAITING_FOR_FIRST_BARRIER: WaitingForFirstBarrier(),
    BarrierState.COLLECTING_BARRIERS: CollectingBarriers(),
    BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER: AlternatingWaitingForFirstBarrier(),
    BarrierState.ALTERNATING_COLLECTING_BARRIERS: AlternatingCollectingBarriers(),
    BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER_UNALIGNED: WaitingForFirstBarrierUnaligned(alternating=True),
    BarrierState.ALTERNATING_COLLECTING_BARRIERS_UNALIGNED: CollectingBarriersUnaligned(alternating=True),
    BarrierState.ALTERNATING_WAITING_FOR_ALIGNED_CHANNELS: AlternatingWaitingForAlignedChannels(),
    BarrierState.WAITING_FOR_FIRST_BARRIER_UNALIGNED: WaitingForFirstBarrierUnaligned(alternating=False),
    BarrierState.COLLECTING_BARRIERS_UNALIGNED: CollectingBarriersUnaligned(alternating=False),
}
