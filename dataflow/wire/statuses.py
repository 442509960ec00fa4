"""What a job and an attempt of a task can be, and the numbers of it on the wire.

They stand apart from the messages, because a command that prints a status should not load every message.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from snapline.dataflow.wire.protobuf_fields import enum_tables, refuse_enum
from snapline.protos import client_pb2

_TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED"})


class ExecutionState(Enum):
    """Life of one attempt (Flink: ExecutionState)."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        """Whether the attempt is over."""
        return self._value_ in _TERMINAL


class JobStatus(Enum):
    """Life of a job (Flink: JobStatus)."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    SUSPENDED = "SUSPENDED"
    RECONCILING = "RECONCILING"

    @property
    def is_globally_terminal(self) -> bool:
        """No coordinator will ever run this job again."""
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)


_STATUS = client_pb2.JobOverview.DESCRIPTOR.fields_by_name["status"]
_STATUS_TO_NUMBER, _STATUS_FROM_NUMBER = enum_tables(JobStatus, _STATUS)
_STATE = client_pb2.SubtaskDetails.DESCRIPTOR.fields_by_name["state"]
_STATE_TO_NUMBER, _STATE_FROM_NUMBER = enum_tables(ExecutionState, _STATE)


def encode_job_status(value: JobStatus) -> Any:
    """The number of a job status."""
    return _STATUS_TO_NUMBER[value]


def decode_job_status(number: int) -> JobStatus:
    """The job status of a number. Raises WireError for one that this version does not know."""
    status: Any = _STATUS_FROM_NUMBER.get(number)
    if status is None:
        raise refuse_enum("JobOverview.status", number)
    return status


def encode_state(value: ExecutionState) -> Any:
    """The number of an execution state."""
    return _STATE_TO_NUMBER[value]


def decode_state(number: int) -> ExecutionState:
    """The execution state of a number. Raises WireError for one that this version does not know."""
    state: Any = _STATE_FROM_NUMBER.get(number)
    if state is None:
        raise refuse_enum("SubtaskDetails.state", number)
    return state
