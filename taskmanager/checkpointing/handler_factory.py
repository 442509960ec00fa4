"""Which barrier handler a task gets, by checkpointing mode and settings. Mirrors Flink's
InputProcessorUtil.createCheckpointBarrierHandler, with the aligner and the strict unaligner selectable by name for
tests and for jobs of the 1.11 kind."""

from __future__ import annotations

from collections.abc import Collection

from snapline.dataflow.config import CHECKPOINTING_MODE, CHECKPOINTING_UNALIGNED, ConfigurationError
from snapline.taskmanager.checkpointing.barrier_handler import CheckpointBarrierHandler
from snapline.taskmanager.checkpointing.barrier_states import BarrierState
from snapline.taskmanager.checkpointing.checkpoint_barrier_tracker import CheckpointBarrierTracker
from snapline.taskmanager.checkpointing.checkpointing_contract import BarrierListener, CheckpointableInput
from snapline.taskmanager.checkpointing.single_checkpoint_barrier_handler import SingleCheckpointBarrierHandler
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo

EXACTLY_ONCE = "EXACTLY_ONCE"
AT_LEAST_ONCE = "AT_LEAST_ONCE"


def checkpoint_barrier_aligner(
    inputs: CheckpointableInput, listener: BarrierListener, *, checkpoints_after_tasks_finish: bool = True
) -> SingleCheckpointBarrierHandler:
    """Exactly-once: blocks each channel from its barrier until all barriers came (Flink: CheckpointBarrierAligner)."""
    return SingleCheckpointBarrierHandler(
        inputs,
        listener,
        BarrierState.WAITING_FOR_FIRST_BARRIER,
        checkpoints_after_tasks_finish=checkpoints_after_tasks_finish,
    )


def checkpoint_barrier_unaligner(
    inputs: CheckpointableInput, listener: BarrierListener, *, checkpoints_after_tasks_finish: bool = True
) -> SingleCheckpointBarrierHandler:
    """Exactly-once: triggers on the first barrier, whatever it says (Flink: CheckpointBarrierUnaligner)."""
    return SingleCheckpointBarrierHandler(
        inputs,
        listener,
        BarrierState.WAITING_FOR_FIRST_BARRIER_UNALIGNED,
        checkpoints_after_tasks_finish=checkpoints_after_tasks_finish,
    )


def alternating_checkpoint_barrier_handler(
    inputs: CheckpointableInput,
    listener: BarrierListener,
    *,
    checkpoints_after_tasks_finish: bool = True,
    never_overtaken: Collection[InputChannelInfo] = (),
) -> SingleCheckpointBarrierHandler:
    """Exactly-once: each barrier says whether it is aligned (savepoints), unaligned, or aligned until its timeout
    (Flink: AlternatingCheckpointBarrierHandler). On the channels that are `never_overtaken` it is always aligned."""
    return SingleCheckpointBarrierHandler(
        inputs,
        listener,
        BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER,
        checkpoints_after_tasks_finish=checkpoints_after_tasks_finish,
        never_overtaken=never_overtaken,
    )


def create_barrier_handler(
    mode: str,
    inputs: CheckpointableInput,
    listener: BarrierListener,
    *,
    unaligned_enabled: bool = False,
    checkpoints_after_tasks_finish: bool = True,
    never_overtaken: Collection[InputChannelInfo] = (),
) -> CheckpointBarrierHandler:
    """The handler of a task with these inputs (over all its gates). Raises ConfigurationError for a mode that
    does not exist, and for AT_LEAST_ONCE with unaligned checkpoints."""
    if mode == AT_LEAST_ONCE:
        if unaligned_enabled:
            raise ConfigurationError(
                f"{CHECKPOINTING_MODE.key} = {AT_LEAST_ONCE} cannot be combined with {CHECKPOINTING_UNALIGNED.key} = "
                f"true: a barrier that is only counted overtakes nothing. Use {EXACTLY_ONCE}, or aligned checkpoints"
            )
        return CheckpointBarrierTracker(inputs, listener, checkpoints_after_tasks_finish=checkpoints_after_tasks_finish)
    if mode != EXACTLY_ONCE:
        raise ConfigurationError(f"{CHECKPOINTING_MODE.key} = {mode!r}: expected {EXACTLY_ONCE} or {AT_LEAST_ONCE}")
    if not unaligned_enabled:
        return checkpoint_barrier_aligner(
            inputs, listener, checkpoints_after_tasks_finish=checkpoints_after_tasks_finish
        )
    return alternating_checkpoint_barrier_handler(
        inputs,
        listener,
        checkpoints_after_tasks_finish=checkpoints_after_tasks_finish,
        never_overtaken=never_overtaken,
    )
