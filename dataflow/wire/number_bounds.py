"""Which numbers a message may carry: what does not lie within is refused where it is decoded, before any core sees it.

A number without an entry that travels in 32 bits counts or indexes something and is not negative; one that travels in
64 bits is a time, a size or an id of the operating system and stands for itself. The limits are far beyond what a
cluster has, and small enough that a single message cannot take a coordinator's memory.
"""

from __future__ import annotations

from snapline.dataflow.key_groups import UPPER_BOUND_MAX_PARALLELISM
from snapline.dataflow.wire.wire_errors import WireError

MAX_SLOTS = 1 << 14
"""The most slots that one TaskManager may have."""
MAX_REQUIRED_SLOTS = 1 << 20
"""The most slots that one job may require."""
MAX_COUNT = (1 << 31) - 1
MAX_ID = (1 << 63) - 1
MAX_MEASURED = 1 << 62
"""The most that a process says of itself, where differences are taken: they have to fit into 64 bits."""

_BOUNDS: dict[str, tuple[int, int]] = {
    "JobVertex.parallelism": (1, UPPER_BOUND_MAX_PARALLELISM),
    "JobVertex.max_parallelism": (1, UPPER_BOUND_MAX_PARALLELISM),
    "JobVertex.submitted_parallelism": (0, UPPER_BOUND_MAX_PARALLELISM),
    "TaskDeploymentDescriptor.parallelism": (1, UPPER_BOUND_MAX_PARALLELISM),
    "TaskDeploymentDescriptor.max_parallelism": (1, UPPER_BOUND_MAX_PARALLELISM),
    "TaskDeploymentDescriptor.restore_checkpoint_id": (0, MAX_ID),
    "ResultPartitionDescriptor.subpartitions": (0, UPPER_BOUND_MAX_PARALLELISM),
    "ResultPartitionDescriptor.target_parallelism": (1, UPPER_BOUND_MAX_PARALLELISM),
    "ResultPartitionDescriptor.target_max_parallelism": (1, UPPER_BOUND_MAX_PARALLELISM),
    "OperatorDescriptor.chained_input": (-1, MAX_COUNT),
    "OperatorNode.chained_input": (-1, MAX_COUNT),
    "TaskManagerInfo.slots": (1, MAX_SLOTS),
    "SlotStatus.slot_number": (0, MAX_SLOTS - 1),
    "SlotOffer.slot_number": (0, MAX_SLOTS - 1),
    "RequestSlot.slot_number": (0, MAX_SLOTS - 1),
    "NotifySlotAvailable.slot_number": (0, MAX_SLOTS - 1),
    "SlotsHeld.slots": (0, MAX_SLOTS),
    "DeclareRequiredSlots.required": (0, MAX_REQUIRED_SLOTS),
    "DeclareRequiredSlots.least": (0, MAX_REQUIRED_SLOTS),
    "NotEnoughResources.required": (0, MAX_REQUIRED_SLOTS),
    "ExecutionAttemptID.subtask_index": (0, UPPER_BOUND_MAX_PARALLELISM - 1),
    "ExecutionAttemptID.attempt_number": (0, MAX_COUNT),
    "KeyGroupRange.start": (0, UPPER_BOUND_MAX_PARALLELISM - 1),
    "KeyGroupRange.end": (-1, UPPER_BOUND_MAX_PARALLELISM - 1),
    "ExecutionReport.last_checkpoint_id": (0, MAX_ID),
    "ExecutionReport.confirmed_checkpoint_id": (0, MAX_ID),
    "ReportWatermark.max_drift_ms": (0, MAX_ID),
    "ProcessFigures.resident_bytes": (0, MAX_MEASURED),
    "ProcessFigures.clock_ms": (-MAX_MEASURED, MAX_MEASURED),
}


def bounds_of(label: str, bits: int) -> tuple[int, int] | None:
    """Least and greatest value of a field (`Message.field`) that travels as a signed number of so many bits; None:
    any."""
    return _BOUNDS.get(label, (0, MAX_COUNT) if bits == 32 else None)


def check_number(label: str, value: int) -> int:
    """The value. Raises WireError when it does not lie within the bounds of its field."""
    least, most = _BOUNDS[label]
    if not least <= value <= most:
        raise out_of_bounds(label, value, (least, most))
    return value


def out_of_bounds(label: str, value: int, bounds: tuple[int, int]) -> WireError:
    """The error for a number that no message may carry."""
    return WireError(f"{label} has to lie between {bounds[0]} and {bounds[1]}, not {value}")
