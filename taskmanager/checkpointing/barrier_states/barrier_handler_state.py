"""What a state of the barrier handler is, what it may ask for, and which transitions exist.

A state decides what one event means and names the next state; what it wants done it asks of the `Controller`, which is
all that it can reach. States hold nothing themselves: which channels are announced or blocked is the controller's.
Mirrors Flink's BarrierHandlerState with its Controller; there a state returns the next state object, here its name, so
that the legal transitions are one table (`TRANSITIONS`), which is checked on every transition and drawn in the docs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo


class BarrierState(Enum):
    """States of SingleCheckpointBarrierHandler. The first pair is all of the aligner, the last pair all of the strict
    unaligner; the alternating handler uses the five in the middle."""

    WAITING_FOR_FIRST_BARRIER = "waiting for first barrier"
    COLLECTING_BARRIERS = "collecting barriers"
    ALTERNATING_WAITING_FOR_FIRST_BARRIER = "alternating: waiting for first barrier"
    ALTERNATING_COLLECTING_BARRIERS = "alternating: collecting barriers"
    ALTERNATING_WAITING_FOR_FIRST_BARRIER_UNALIGNED = "alternating: timed out, waiting for first barrier"
    ALTERNATING_COLLECTING_BARRIERS_UNALIGNED = "alternating: collecting barriers, unaligned"
    ALTERNATING_WAITING_FOR_ALIGNED_CHANNELS = "alternating: unaligned, waiting for channels that must be aligned"
    WAITING_FOR_FIRST_BARRIER_UNALIGNED = "waiting for first barrier, unaligned"
    COLLECTING_BARRIERS_UNALIGNED = "collecting barriers, unaligned"


class BarrierEvent(Enum):
    """What can happen to a state."""

    ANNOUNCEMENT = "announcement"
    BARRIER = "barrier"
    TIMEOUT = "aligned timeout"
    END_OF_PARTITION = "end of partition"
    ABORT = "abort"


_S, _E = BarrierState, BarrierEvent
_WAIT, _COLLECT = _S.WAITING_FOR_FIRST_BARRIER, _S.COLLECTING_BARRIERS
_ALT_WAIT, _ALT_COLLECT = _S.ALTERNATING_WAITING_FOR_FIRST_BARRIER, _S.ALTERNATING_COLLECTING_BARRIERS
_ALT_WAIT_U = _S.ALTERNATING_WAITING_FOR_FIRST_BARRIER_UNALIGNED
_ALT_COLLECT_U = _S.ALTERNATING_COLLECTING_BARRIERS_UNALIGNED
_ALT_HOLD = _S.ALTERNATING_WAITING_FOR_ALIGNED_CHANNELS
_WAIT_U, _COLLECT_U = _S.WAITING_FOR_FIRST_BARRIER_UNALIGNED, _S.COLLECTING_BARRIERS_UNALIGNED

TRANSITIONS: Mapping[tuple[BarrierState, BarrierEvent], tuple[BarrierState, ...]] = {
    # aligner
    (_WAIT, _E.ANNOUNCEMENT): (_WAIT,),
    (_WAIT, _E.BARRIER): (_COLLECT, _WAIT),
    (_WAIT, _E.END_OF_PARTITION): (_WAIT,),
    (_WAIT, _E.ABORT): (_WAIT,),
    (_COLLECT, _E.ANNOUNCEMENT): (_COLLECT,),
    (_COLLECT, _E.BARRIER): (_COLLECT, _WAIT),
    (_COLLECT, _E.END_OF_PARTITION): (_COLLECT, _WAIT),
    (_COLLECT, _E.ABORT): (_WAIT,),
    # alternating
    (_ALT_WAIT, _E.ANNOUNCEMENT): (_ALT_WAIT,),
    (_ALT_WAIT, _E.BARRIER): (_ALT_COLLECT, _ALT_COLLECT_U, _ALT_HOLD, _ALT_WAIT),
    (_ALT_WAIT, _E.TIMEOUT): (_ALT_WAIT_U,),
    (_ALT_WAIT, _E.END_OF_PARTITION): (_ALT_WAIT,),
    (_ALT_WAIT, _E.ABORT): (_ALT_WAIT,),
    (_ALT_COLLECT, _E.ANNOUNCEMENT): (_ALT_COLLECT,),
    (_ALT_COLLECT, _E.BARRIER): (_ALT_COLLECT, _ALT_COLLECT_U, _ALT_HOLD, _ALT_WAIT),
    (_ALT_COLLECT, _E.TIMEOUT): (_ALT_COLLECT_U, _ALT_HOLD),
    (_ALT_COLLECT, _E.END_OF_PARTITION): (_ALT_COLLECT, _ALT_COLLECT_U, _ALT_HOLD, _ALT_WAIT),
    (_ALT_COLLECT, _E.ABORT): (_ALT_WAIT,),
    (_ALT_WAIT_U, _E.ANNOUNCEMENT): (_ALT_WAIT_U,),
    (_ALT_WAIT_U, _E.BARRIER): (_ALT_COLLECT_U, _ALT_HOLD, _ALT_WAIT),
    (_ALT_WAIT_U, _E.END_OF_PARTITION): (_ALT_WAIT_U,),
    (_ALT_WAIT_U, _E.ABORT): (_ALT_WAIT,),
    (_ALT_COLLECT_U, _E.ANNOUNCEMENT): (_ALT_COLLECT_U,),
    (_ALT_COLLECT_U, _E.BARRIER): (_ALT_COLLECT_U, _ALT_WAIT),
    (_ALT_COLLECT_U, _E.TIMEOUT): (_ALT_COLLECT_U,),
    (_ALT_COLLECT_U, _E.END_OF_PARTITION): (_ALT_COLLECT_U, _ALT_WAIT),
    (_ALT_COLLECT_U, _E.ABORT): (_ALT_WAIT,),
    (_ALT_HOLD, _E.ANNOUNCEMENT): (_ALT_HOLD,),
    (_ALT_HOLD, _E.BARRIER): (_ALT_HOLD, _ALT_COLLECT_U, _ALT_WAIT),
    (_ALT_HOLD, _E.TIMEOUT): (_ALT_HOLD,),
    (_ALT_HOLD, _E.END_OF_PARTITION): (_ALT_HOLD, _ALT_COLLECT_U, _ALT_WAIT),
    (_ALT_HOLD, _E.ABORT): (_ALT_WAIT,),
    # unaligner
    (_WAIT_U, _E.ANNOUNCEMENT): (_WAIT_U,),
    (_WAIT_U, _E.BARRIER): (_COLLECT_U, _WAIT_U),
    (_WAIT_U, _E.END_OF_PARTITION): (_WAIT_U,),
    (_WAIT_U, _E.ABORT): (_WAIT_U,),
    (_COLLECT_U, _E.ANNOUNCEMENT): (_COLLECT_U,),
    (_COLLECT_U, _E.BARRIER): (_COLLECT_U, _WAIT_U),
    (_COLLECT_U, _E.END_OF_PARTITION): (_COLLECT_U, _WAIT_U),
    (_COLLECT_U, _E.ABORT): (_WAIT_U,),
}
"""All and only the legal transitions: (state, event) to the possible next states."""


class Controller(Protocol):
    """All that a state may know and ask for."""

    @property
    def all_barriers_received(self) -> bool:
        """Every channel that is waited for has delivered its barrier, or ended."""
        ...

    @property
    def pending_barrier(self) -> CheckpointBarrier:
        """The first barrier or announcement of the current checkpoint."""
        ...

    @property
    def may_overtake(self) -> bool:
        """Whether every channel on which nothing may overtake data has delivered its barrier, or ended."""
        ...

    def is_timed_out(self, barrier: CheckpointBarrier) -> bool:
        """Whether the barrier may turn unaligned and is older than its aligned timeout."""
        ...

    def trigger_global_checkpoint(self, barrier: CheckpointBarrier) -> None:
        """The task is to take its snapshot."""
        ...

    def start_inputs_checkpoint(self, barrier: CheckpointBarrier) -> None:
        """All channels are to remember their data in flight."""
        ...

    def stop_inputs_checkpoint(self, checkpoint_id: CheckpointID, *, completed: bool) -> None:
        """All channels are to stop that."""
        ...

    def block_channel(self, channel: InputChannelInfo) -> None:
        """The channel has delivered an aligned barrier and waits."""
        ...

    def unblock_all_channels(self) -> None:
        """Every waiting channel goes on."""
        ...

    def hold_channel(self, channel: InputChannelInfo) -> None:
        """The channel has delivered a barrier that overtook data, and waits for the snapshot."""
        ...

    def release_held_channels(self) -> None:
        """Every held channel goes on."""
        ...

    def add_seen_announcement(self, channel: InputChannelInfo, sequence_number: int) -> None:
        """The barrier of this channel is queued there."""
        ...

    def remove_seen_announcement(self, channel: InputChannelInfo) -> None:
        """The announced barrier has come."""
        ...

    def prioritize_all_announcements(self) -> None:
        """Every announced barrier goes to the front of its channel."""
        ...

    def convert_to_priority_event(self, channel: InputChannelInfo, sequence_number: int) -> None:
        """The announced barrier goes to the front of its channel."""
        ...

    def channel_finished(self, channel: InputChannelInfo) -> None:
        """Forget what was noted about this channel."""
        ...

    def reset_channels(self) -> None:
        """Forget all announcements; nothing is blocked any more."""
        ...


class BarrierHandlerState(ABC):
    """One state. Every method returns the next state."""

    @abstractmethod
    def announcement_received(
        self, controller: Controller, channel: InputChannelInfo, sequence_number: int
    ) -> BarrierState:
        """A barrier of the current checkpoint is queued in this channel."""

    @abstractmethod
    def barrier_received(
        self, controller: Controller, channel: InputChannelInfo, barrier: CheckpointBarrier
    ) -> BarrierState:
        """The barrier of the current checkpoint came from this channel."""

    @abstractmethod
    def aligned_checkpoint_timeout(self, controller: Controller, barrier: CheckpointBarrier) -> BarrierState:
        """The aligned timeout of the current checkpoint has passed."""

    @abstractmethod
    def end_of_partition_received(self, controller: Controller, channel: InputChannelInfo) -> BarrierState:
        """A channel, which the current checkpoint waited for, has ended."""

    @abstractmethod
    def abort(self, controller: Controller, checkpoint_id: CheckpointID) -> BarrierState:
        """The checkpoint is given up; it may be one that no barrier has been seen of."""
