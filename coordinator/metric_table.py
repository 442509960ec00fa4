"""What each figure of a coordinator is: its kind and one sentence of help, by scope and Flink's name.

Prometheus shows a counter with `_total` behind its name, as its conventions ask, and everything else as a gauge.
"""

from __future__ import annotations

from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.metrics import Kind, Sample

TIMED_STATUSES = (
    JobStatus.CREATED,
    JobStatus.RUNNING,
    JobStatus.RESTARTING,
    JobStatus.FAILING,
    JobStatus.CANCELLING,
)
"""The statuses of which is shown how long the job has been in them, as long as it is, as in Flink."""

_GAUGES = {
    "jobmanager": {
        "isLeader": "Whether this coordinator leads (1) or stands by (0).",
        "uptime": "Milliseconds since this coordinator began to lead.",
        "numRegisteredTaskManagers": "TaskManagers that are registered now.",
        "taskSlotsTotal": "Slots of all registered TaskManagers.",
        "taskSlotsAvailable": "Slots that no job has.",
        "taskSlotsRequired": "Slots that the running jobs need in all.",
        "numRunningJobs": "Jobs that have a JobMaster and have not ended.",
    },
    "jobmanager_job": {
        "numberOfInProgressCheckpoints": "Checkpoints that are being taken now.",
        "uptime": "Milliseconds since the job is RUNNING without a break, 0 while it is not.",
        "downtime": "Milliseconds since the job stopped to be RUNNING because of a failure, 0 while it runs.",
        "lastCheckpointAge": "Milliseconds since the latest checkpoint completed, or since the job began without one.",
        "lastCheckpointDuration": "Milliseconds that the latest completed checkpoint took from its trigger to its end.",
        "lastCheckpointSize": "Bytes that the latest completed checkpoint wrote.",
        "lastCheckpointFullSize": "Bytes that the latest completed checkpoint refers to.",
        "lastCheckpointProcessedData": "Bytes that tasks processed while they aligned for the latest checkpoint.",
        "lastCheckpointPersistedData": "Bytes in flight that became part of the latest completed checkpoint.",
        "lastCompletedCheckpointId": "Id of the latest completed checkpoint.",
        "lastCheckpointRestoreTimestamp": "When the job was restored the last time, in milliseconds since 1970.",
    },
    "taskmanager": {
        "slots": "Slots of the TaskManager.",
        "slotsFree": "Slots of the TaskManager that no job has.",
        "processResidentMemory": "Bytes of memory that the process of the TaskManager has in use.",
        "processMemoryGrowth": "Bytes by which that memory has grown without a break within the last minute, else 0.",
        "processCpuTimeMsPerSecond": "Milliseconds of processor time that the process has used in each second.",
        "processThreads": "Threads of the process of the TaskManager.",
        "processOpenFiles": "Files and connections that the process of the TaskManager has open.",
    },
    "taskmanager_job_task": {
        "currentInputWatermark": "Event time up to which the subtask is complete, in milliseconds since 1970.",
        "watermarkLag": "Milliseconds between now and the event time up to which the subtask is complete.",
        "numRecordsInPerSecond": "Rows that the subtask took a second, over the last ten seconds.",
        "numRecordsOutPerSecond": "Rows that the subtask gave a second, over the last ten seconds.",
        "busyTimeMsPerSecond": "Milliseconds of each of the last ten seconds in which the subtask worked.",
        "backPressuredTimeMsPerSecond": "Milliseconds of each of the last ten seconds in which no output had room.",
        "idleTimeMsPerSecond": "Milliseconds of each of the last ten seconds in which there was nothing to do.",
        "checkpointAlignmentTime": "Nanoseconds that the subtask aligned barriers for the latest completed checkpoint.",
        "checkpointStartDelayNanos": "Nanoseconds from the trigger of that checkpoint until its first barrier was here.",
        "checkpointStateSize": "Bytes of the state of the subtask in that checkpoint.",
        "buffers_inputQueueLength": "Batches that wait for the subtask, in local channels on the producer's side.",
        "buffers_inputQueueSize": "Bytes of these batches.",
        "buffers_inPoolUsage": "How full the fullest input channel of the subtask is, from 0 to 1.",
        "buffers_inputCredits": "Batches that producers in other processes may still send to the subtask.",
        "buffers_outputQueueLength": "Batches that the subtask has put out and no consumer has taken.",
        "buffers_outputQueueSize": "Bytes of these batches.",
        "buffers_outPoolUsage": "How full the fullest output of the subtask is, from 0 to 1: at 1 it is back-pressured.",
        "buffers_outputCredits": "Batches that the subtask's consumers in other processes can take at once.",
        "currentStepDuration": "Milliseconds for which the present step of the subtask has lasted, 0 between steps.",
    },
}
_COUNTERS = {
    "jobmanager": {
        "failedJobs": "Jobs that have ended as FAILED under this leader.",
        "rejectedRegistrations": "Registrations of TaskManagers that this leader has rejected.",
        "lostTaskManagers": "TaskManagers that were registered with this leader and are gone.",
    },
    "jobmanager_job": {
        "totalNumberOfCheckpoints": "Checkpoints that were triggered.",
        "numberOfCompletedCheckpoints": "Checkpoints that have completed.",
        "numberOfFailedCheckpoints": "Checkpoints that have failed.",
        "numRestarts": "How often the job was restarted.",
        "numOperatorFailures": "How often the operator has failed its task, by its uid: errors that nothing survived.",
    },
    "taskmanager_job_task": {
        "numRecordsIn": "Rows that the present attempt of the subtask has taken.",
        "numRecordsOut": "Rows that the present attempt of the subtask has given.",
        "numBytesIn": "Bytes that the present attempt of the subtask has taken.",
        "numBytesOut": "Bytes that the present attempt of the subtask has given.",
        "accumulateBusyTimeMs": "Milliseconds in which the present attempt worked.",
        "accumulateBackPressuredTimeMs": "Milliseconds in which no output of the present attempt had room.",
        "accumulateIdleTimeMs": "Milliseconds in which the present attempt had nothing to do.",
    },
}


def sample(scope: str, name: str, value: float, labels: dict[str, str] | None = None) -> Sample:
    """One figure with the kind and the help of its name. A status of a job stands in no table: it is 0 or 1, or how
    long it lasts."""
    counter = _COUNTERS.get(scope, {}).get(name)
    if counter is not None:
        return Sample(scope, name, value, labels or {}, Kind.COUNTER, counter)
    if scope == "jobmanager_job" and name.endswith("State"):
        help_text = f"Whether the job is {name.removesuffix('State').upper()} (1) or not (0)."
        return Sample(scope, name, value, labels or {}, Kind.GAUGE, help_text)
    if scope == "jobmanager_job" and name.endswith("Time"):
        status = name.removesuffix("Time").upper()
        help_text = f"Milliseconds since the job is {status}, 0 while it is not."
        return Sample(scope, name, value, labels or {}, Kind.GAUGE, help_text)
    return Sample(scope, name, value, labels or {}, Kind.GAUGE, _GAUGES[scope][name])
