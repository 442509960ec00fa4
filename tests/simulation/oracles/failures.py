"""A task fails only for a reason that was simulated: anything else is a defect that a restart would hide."""

from __future__ import annotations

from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.failures import SerializedFailure
from snapline.testing.simulated.world import Defect

EXPECTED = frozenset(
    {
        "SimulatedUserError",
        "ChannelFailure",
        "StorageError",
        "StorageNotFound",
        "RestoreFailure",
        "SavepointFailure",
        "JobMasterLost",
        "TaskManagerLost",
        "TaskSubmissionException",
        "",
    }
)


def check_failure(failure: SerializedFailure) -> None:
    """Raises Defect."""
    if failure.error_type not in EXPECTED:
        raise Defect(f"a task failed: {failure.error_type}: {failure.summary}\n{failure.traceback}")


def check_error(error: BaseException, where: str) -> None:
    """Of slow work in the coordinator. Raises Defect."""
    if not isinstance(error, SnaplineError) and type(error).__name__ not in (
        "PointerExists",
        "CheckpointIDCounterError",
        "SimulatedUserError",
    ):
        raise Defect(f"{where}: {type(error).__name__}: {error}") from error
