"""From an exception in a task to the failure that its JobMaster and the user get to see.

Decides whose failure it is (the user's function, a service, ourselves), whether trying again can help, and which
position in the input is named. Mirrors Flink's SerializedThrowable and the wrapping of failures in StreamTask.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from types import FrameType

from snapline.dataflow.config import ConfigurationError
from snapline.dataflow.errors import ConnectorError, JobDefinitionError, SnaplineError
from snapline.dataflow.failures import USER_TRACEBACK, Blame, SerializedFailure, message_of
from snapline.runtime.cores.machine import InvariantViolation
from snapline.runtime.logs import harmless
from snapline.taskmanager.operators.base.failure import OperatorFailure, RowFailure

MAX_SUMMARY = 4_000
"""Characters that the line which tells a failure has at most."""
MAX_TRACEBACK = 100_000
"""Characters that a traceback has at most."""
OUR_ROOMS = frozenset({"taskmanager", "runtime", "dataflow", "snapline", "pyarrow"})


@dataclass(slots=True)
class InputPosition:
    """Where the task is in its input. Counted since the start of the attempt."""

    input_name: str = ""
    """Edge and channel, or the source; empty: nothing is being processed."""
    batch_number: int = 0
    rows: int = 0
    rows_before: int = 0

    def __str__(self) -> str:
        """Return the position as it stands in error messages."""
        if not self.input_name:
            return ""
        if not self.rows:  # a source that fails itself
            return self.input_name
        last = self.rows_before + self.rows - 1
        return f"{self.input_name}, batch {self.batch_number} (rows {self.rows_before} to {last} of this attempt)"


class ChannelFailure(Exception):
    """An input channel lost its producer or its connection."""


class RestoreFailure(Exception):
    """State could not be read back."""


class SavepointFailure(Exception):
    """The job was to stop with a savepoint, and the savepoint failed after sources had stopped."""


def root_cause(error: BaseException) -> BaseException:
    """What a user raised, below our own wrapping."""
    while isinstance(error, (OperatorFailure, RowFailure)):
        error = error.cause
    return error


def serialize_failure(error: BaseException, position: InputPosition) -> SerializedFailure:
    """The failure as it travels."""
    cause = root_cause(error)
    blame = _blame(error, cause)
    operator_uid, where, row = "", str(position), ""
    prefix = ""
    if isinstance(error, OperatorFailure):
        operator_uid = error.operator_uid
        prefix = f"operator {error.operator_name!r} (uid {operator_uid!r}) failed in {error.activity}: "
        if isinstance(error.cause, RowFailure):
            row = error.cause.digest
            where = (
                f"{where}, row {error.cause.row_index} of the batch"
                if where
                else f"row {error.cause.row_index} of its batch"
            )
        elif error.activity != "process_batch":
            where = ""
    return SerializedFailure(
        summary=shortened(
            f"{prefix}{type(cause).__name__}: {_first_line(cause)}" if prefix else _summary(cause), MAX_SUMMARY
        ),
        blame=blame,
        retryable=not isinstance(cause, (JobDefinitionError, ConfigurationError)),
        error_type=type(cause).__name__,
        traceback=shortened(_traceback(cause, blame), MAX_TRACEBACK),
        operator_uid=operator_uid,
        position=where,
        row=row,
    )


def shortened(text: str, most: int) -> str:
    """The text as any message, log and terminal can carry it: with its begin and its end, and without halves of
    characters, as names of files have."""
    if len(text) > most:
        text = f"{text[: most // 2]}... ({len(text) - most:,} characters left out) ...{text[-most // 2 :]}"
    return harmless(text)


def _traceback(cause: BaseException, blame: Blame) -> str:
    """Where it was raised; empty for an exception that cannot be read, which must not keep its task from ending."""
    try:
        return _frames_of(cause, blame)
    except Exception:
        return ""


def _frames_of(cause: BaseException, blame: Blame) -> str:
    """The frames from the first to the last of the user's code, when it is the user's failure and there are such; else
    all."""
    theirs = cause.__traceback__
    while theirs is not None and _is_ours(theirs.tb_frame):
        theirs = theirs.tb_next
    if blame is not Blame.USER or theirs is None:
        return "".join(traceback.format_exception(cause))
    last = max(place for place, (frame, _) in enumerate(traceback.walk_tb(theirs)) if not _is_ours(frame))
    text = "".join(traceback.format_exception(type(cause), cause, theirs, limit=last + 1, chain=False))
    return text.replace("Traceback (most recent call last):", USER_TRACEBACK, 1)


def _is_ours(frame: FrameType) -> bool:
    """Whether the frame is one of the engine, and not of a function that it was given."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in OUR_ROOMS


def _first_line(cause: BaseException) -> str:
    text = message_of(cause)
    return text.splitlines()[0] if text else ""


def _summary(cause: BaseException) -> str:
    if isinstance(cause, (SnaplineError, ConfigurationError, ChannelFailure, RestoreFailure, SavepointFailure)):
        return _first_line(cause)
    return f"{type(cause).__name__}: {_first_line(cause)}"


def _blame(error: BaseException, cause: BaseException) -> Blame:
    if isinstance(cause, InvariantViolation):
        return Blame.INTERNAL
    if isinstance(cause, (ChannelFailure, RestoreFailure, SavepointFailure, ConnectorError, OSError)):
        return Blame.EXTERNAL
    if isinstance(cause, (SnaplineError, ConfigurationError)) or isinstance(error, OperatorFailure):
        return Blame.USER
    return Blame.INTERNAL
