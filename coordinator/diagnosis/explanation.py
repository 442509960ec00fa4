"""Why a job does not get on: which subtask holds it up, what that one does, and which checkpoint waits for whom.

Reads what clients can see of a job (details, checkpoints) and the stacks of suspected threads, and decides what is
worth a line and which line comes first: a job that does not run, a subtask that does not come back from a call, the
root of back-pressure, a skewed key, a checkpoint that waits, a source without watermarks. Rates are those of the last
ten seconds. Mirrors what a person does with Flink's back-pressure, checkpoint and thread-dump pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low

from snapline.coordinator.diagnosis.clock_findings import clock_findings
from snapline.coordinator.diagnosis.memory_growth import memory_findings
from snapline.coordinator.diagnosis.stack_reading import Place, place_of, stacks_by_task, writing_of
from snapline.dataflow.wire.codec import decode_job_status, decode_state
from snapline.dataflow.wire.messages import ExecutionState, JobStatus, ThreadDump
from snapline.protos import client_pb2 as pb

BUSY_MS, PRESSED_MS = 700, 500
"""Milliseconds of each second, from which on a subtask is busy, or back-pressured."""
FULL_MS = 950
"""Milliseconds of each second, from which on a subtask can do no more, whether or not somebody waits for it."""
LONG_STEP_MS = 2_000
"""A step that lasts longer is a call that does not come back."""
SKEW_FACTOR = 2
"""So many times as many rows as the subtask in the middle make the hottest one skewed."""
LONG_CHECKPOINT_MS = 5_000
NEW_LEADER_MS = 120_000
"""For so long after a change of the leader it is said that there was one."""
UNKNOWN_WATERMARK_MS = -(2**63)
MAX_NAMED = 3
"""Subtasks that one line names."""

_AWAITED = {"lock": "a lock", "answer": "an answer"}

_Task = tuple[pb.VertexDetails, pb.SubtaskDetails]


def task_managers_of(details: pb.JobDetails) -> set[str]:
    """The TaskManagers that run a task of the job."""
    live = (ExecutionState.DEPLOYING, ExecutionState.INITIALIZING, ExecutionState.RUNNING, ExecutionState.CANCELING)
    return {s.resource_id for _, s in _tasks(details) if s.resource_id and decode_state(s.state) in live}


def suspected_task_managers(details: pb.JobDetails, waiting: pb.CheckpointDetails | None) -> set[str]:
    """The TaskManagers whose threads are worth a look: those of subtasks that are busy, do not come back or do not end,
    and that a checkpoint waits for."""
    late = {(vertex, index) for vertex, index, _ in _not_acknowledged(waiting)}
    return {
        subtask.resource_id
        for vertex, subtask in _tasks(details)
        if subtask.resource_id
        and (
            subtask.busy_ms_per_second >= BUSY_MS
            or subtask.step_ms >= LONG_STEP_MS
            or decode_state(subtask.state) in (ExecutionState.CANCELING, ExecutionState.INITIALIZING)
            or (vertex.vertex_id, subtask.subtask_index) in late
        )
    }


def explain(
    details: pb.JobDetails,
    checkpoints: pb.ListCheckpointsResponse,
    waiting: pb.CheckpointDetails | None,
    dumps: Iterable[ThreadDump],
    now_ms: int,
    registered: Sequence[pb.TaskManagerDetails] = (),
    leads_since_ms: int = 0,
) -> pb.JobExplanation:
    """What holds the job up. `waiting` is the oldest checkpoint in progress; `dumps` are of the suspected TaskManagers;
    `registered` are those of the cluster; the coordinator leads since `leads_since_ms` (0: not known)."""
    dumps = list(dumps)
    places = {key: place_of(stacks) for key, stacks in stacks_by_task(dumps).items()}
    findings = [
        *_not_running(details, places, now_ms),
        *_long_steps(details, places),
        *_causes_first(_busy(details, places), _skew(details)),
        *_checkpoints(details, checkpoints, waiting, dumps, places, now_ms),
        *memory_findings(details, registered, dumps),
        *clock_findings(details, registered),
        *_watermarks(details),
        *_new_leader(details, leads_since_ms, now_ms),
    ]
    summary = findings[0].summary if findings else _nothing(details)
    return pb.JobExplanation(summary=summary, findings=findings)


# --- the parts --------------------------------------------------------------------------------------------------------

_Places = dict[tuple[str, int], Place | None]


def _not_running(details: pb.JobDetails, places: _Places, now_ms: int) -> list[pb.JobFinding]:
    overview = details.overview
    status = decode_job_status(overview.status)
    if status in (JobStatus.RUNNING, JobStatus.FINISHED, JobStatus.CANCELED):
        return []
    since_ms = details.status_timestamps_ms.get(status.value, 0)
    lasts = f" for {_duration(now_ms - since_ms)}" if since_ms and not overview.end_time_ms else ""
    found = []
    if status is JobStatus.CANCELLING:
        for vertex, subtask in _tasks(details):
            if decode_state(subtask.state) is ExecutionState.CANCELING:
                place = places.get((vertex.vertex_id, subtask.subtask_index))
                line = f"{_name(vertex, subtask)} has not ended, although it was cancelled{lasts}{_doing(place)}"
                found.append(_finding("user code", line, vertex, subtask, place))
    if details.failures:
        last = details.failures[0]
        task = f" of {last.task_name}" if last.task_name else ""
        tail = f", after {overview.restarts} restarts" if overview.restarts else ""
        found.append(
            _finding("failure", f"the job is {status.value}{tail}; last failure{task}: {last.failure.summary}")
        )
    elif overview.HasField("failure"):
        found.append(_finding("failure", f"the job is {status.value}: {overview.failure.summary}"))
    if overview.status_detail:
        kind = "slots" if "slots" in overview.status_detail else "waiting"
        found.append(_finding(kind, f"the job is {status.value}{lasts}: {overview.status_detail}"))
    if not found:
        starting = [v.name for v, s in _tasks(details) if decode_state(s.state) is ExecutionState.INITIALIZING]
        line = f"; state is restored by {', '.join(dict.fromkeys(starting))}" if starting else ""
        found.append(_finding("waiting", f"the job is {status.value}{lasts}{line}"))
    return found


def _long_steps(details: pb.JobDetails, places: _Places) -> list[pb.JobFinding]:
    """Calls that do not come back, the longest first."""
    stuck = [(v, s) for v, s in _tasks(details) if s.step_ms >= LONG_STEP_MS and _is_running(s)]
    found = []
    for vertex, subtask in sorted(stuck, key=lambda task: -task[1].step_ms)[:MAX_NAMED]:
        place = places.get((vertex.vertex_id, subtask.subtask_index))
        if place is not None and place.kind == "waiting":
            continue  # it has come back meanwhile
        line = f"{_name(vertex, subtask)} has not come back from a call for {_duration(subtask.step_ms)}{_doing(place)}"
        found.append(_finding(_kind(details, vertex, place), line, vertex, subtask, place))
    return found


def _busy(details: pb.JobDetails, places: _Places) -> list[pb.JobFinding]:
    """Subtasks that are busy without being held up themselves; what stands before them is back-pressured."""
    found = []
    pressed = _back_pressured(details)
    hot = [
        (v, s)
        for v, s in _tasks(details)
        if _is_running(s)
        and s.busy_ms_per_second >= BUSY_MS
        and s.backpressured_ms_per_second < PRESSED_MS
        and s.step_ms < LONG_STEP_MS
    ]
    held_up = [name for vertex_id, name in pressed.items() if vertex_id not in {v.vertex_id for v, _ in hot}]
    if not held_up:
        hot = [task for task in hot if task[1].busy_ms_per_second >= FULL_MS]
    for vertex, subtask in sorted(hot, key=lambda task: -task[1].busy_ms_per_second)[:MAX_NAMED]:
        place = places.get((vertex.vertex_id, subtask.subtask_index))
        presses = f" and back-pressures {', '.join(held_up[:MAX_NAMED])}" if held_up else ""
        line = f"{_name(vertex, subtask)} is busy {subtask.busy_ms_per_second // 10} % of the time{presses}: it takes {subtask.records_in_per_second:,} rows/s{_doing(place, subtask.awaits)}"
        found.append(_finding(_kind(details, vertex, place, subtask.awaits), line, vertex, subtask, place))
    return found


def _causes_first(busy: Sequence[pb.JobFinding], skewed: Sequence[pb.JobFinding]) -> list[pb.JobFinding]:
    """A subtask that is busy because most rows are its own is named for that first."""
    hot = {(each.vertex_id, each.subtask_index) for each in busy}
    causes = [each for each in skewed if (each.vertex_id, each.subtask_index) in hot]
    return [*causes, *busy, *(each for each in skewed if each not in causes)]


def _skew(details: pb.JobDetails) -> list[pb.JobFinding]:
    """Vertices whose hottest subtask gets far more rows than the others."""
    found = []
    by_id = {edge.target: edge for edge in details.edges if list(edge.key_columns)}
    for vertex in details.vertices:
        rates = [s.records_in_per_second for s in vertex.subtasks]
        if len(rates) < 2 or vertex.vertex_id not in by_id:
            continue
        hottest = max(vertex.subtasks, key=lambda s: s.records_in_per_second)
        if hottest.busy_ms_per_second < PRESSED_MS or hottest.records_in_per_second < SKEW_FACTOR * max(
            1, median_low(rates)
        ):
            continue
        parallelism = max(1, vertex.parallelism)
        first = -(-hottest.subtask_index * vertex.max_parallelism // parallelism)
        last = -(-(hottest.subtask_index + 1) * vertex.max_parallelism // parallelism) - 1
        keys = ", ".join(by_id[vertex.vertex_id].key_columns)
        share = 100 * hottest.records_in_per_second // max(1, sum(rates))
        line = (
            f"{_name(vertex, hottest)} gets {share} % of the rows, {hottest.records_in_per_second:,} a second: its keys ({keys}) in the "
            f"key groups {first} to {last} are skewed"
        )
        found.append(_finding("skew", line, vertex, hottest))
    return found


def _checkpoints(
    details: pb.JobDetails,
    checkpoints: pb.ListCheckpointsResponse,
    waiting: pb.CheckpointDetails | None,
    dumps: Sequence[ThreadDump],
    places: _Places,
    now_ms: int,
) -> list[pb.JobFinding]:
    found = []
    if waiting is not None:
        usual_ms = round(checkpoints.end_to_end_duration_ms.p95)
        lasts_ms = now_ms - waiting.overview.trigger_timestamp_ms
        if lasts_ms >= max(LONG_CHECKPOINT_MS, 3 * usual_ms):
            found.append(_late_checkpoint(waiting, _duration(lasts_ms), dumps, places))
    is_running = decode_job_status(details.overview.status) is JobStatus.RUNNING
    if checkpoints.refusal and is_running:
        found.append(_finding("checkpoint", f"no checkpoint can be triggered: {checkpoints.refusal}"))
    if checkpoints.HasField("latest_failed"):
        failed = checkpoints.latest_failed
        newer = not checkpoints.HasField("latest_completed") or (
            failed.checkpoint_id > checkpoints.latest_completed.checkpoint_id
        )
        if newer and is_running:
            found.append(
                _finding(
                    "checkpoint",
                    f"checkpoint {failed.checkpoint_id} failed and none has completed since: {failed.failure.message}",
                )
            )
    return found


def _late_checkpoint(
    waiting: pb.CheckpointDetails, lasts: str, dumps: Sequence[ThreadDump], places: _Places
) -> pb.JobFinding:
    """Whom or what a checkpoint waits for that lasts longer than is usual."""
    checkpoint_id, late = waiting.overview.checkpoint_id, _not_acknowledged(waiting)
    if not late:
        line = f"checkpoint {checkpoint_id} has all acknowledgements, and the coordinator stores its metadata since {lasts}"
        return pb.JobFinding(kind="storage", summary=line, subtask_index=-1)
    vertex_id, index, name = late[0]
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    line = f"checkpoint {checkpoint_id} waits for {name} ({index + 1}){more} since {lasts}"
    place = places.get((vertex_id, index))
    kind, said = "checkpoint", _doing(place)
    if not said:  # the task itself does nothing that would explain it: its snapshot may be written beside it
        writing = writing_of(dumps)
        if writing is not None:
            kind, place, said = "storage", writing, f"; its snapshot is being written to the storage: {writing.where}"
    finding = pb.JobFinding(kind=kind, summary=line + said, vertex_id=vertex_id, vertex_name=name, subtask_index=index)
    if place is not None:
        finding.stack.extend(place.stack)
    return finding


def _new_leader(details: pb.JobDetails, leads_since_ms: int, now_ms: int) -> list[pb.JobFinding]:
    """That the leader has changed while the job ran, for a while after it."""
    lasts_ms = now_ms - leads_since_ms
    if not leads_since_ms or details.overview.start_time_ms >= leads_since_ms or lasts_ms > NEW_LEADER_MS:
        return []
    if details.overview.end_time_ms:
        return []
    line = f"the leader has changed: this coordinator leads since {_duration(lasts_ms)}, and has taken the job over"
    return [_finding("leader", line)]


def _watermarks(details: pb.JobDetails) -> list[pb.JobFinding]:
    """Subtasks without a watermark whose neighbours have one: windows behind them do not fire."""
    found = []
    for vertex in details.vertices:
        running = [s for s in vertex.subtasks if _is_running(s)]
        without = [s for s in running if s.watermark_ms == UNKNOWN_WATERMARK_MS]
        if without and len(without) < len(running):
            line = (
                f"{_name(vertex, without[0])} has no watermark yet, others of {vertex.name} have one: windows behind wait for it "
                "(with_idleness lets them go on)"
            )
            found.append(_finding("watermark", line, vertex, without[0]))
    return found


# --- words ------------------------------------------------------------------------------------------------------------


def _nothing(details: pb.JobDetails) -> str:
    status = decode_job_status(details.overview.status)
    if status is not JobStatus.RUNNING:
        return f"nothing holds the job up: it is {status.value}"
    hottest = max(_tasks(details), key=lambda task: task[1].busy_ms_per_second, default=None)
    if hottest is None:
        return "nothing holds the job up"
    vertex, subtask = hottest
    share = subtask.busy_ms_per_second // 10
    return f"nothing holds the job up; the busiest subtask is {_name(vertex, subtask)}, {share} % of the time"


def _kind(details: pb.JobDetails, vertex: pb.VertexDetails, place: Place | None, awaits: str = "") -> str:
    if place is not None and place.kind in ("user code", "storage", "loading"):
        return place.waits_for if place.waits_for and place.kind == "user code" else place.kind
    if awaits:
        return "answer"
    if len(vertex.operator_uids) > 1 and (place is None or place.kind != "connector"):
        return "busy"  # which operator of the chain it is nobody has seen
    if all(edge.source != vertex.vertex_id for edge in details.edges):
        return "sink"
    if all(edge.target != vertex.vertex_id for edge in details.edges):
        return "source"
    return "busy"


def _doing(place: Place | None, awaits: str = "") -> str:
    if awaits and (place is None or place.kind in ("waiting", "engine")):
        return f"; it waits for {awaits}"
    if place is None or not place.where or place.kind == "waiting" or (place.kind == "engine" and not place.waits_for):
        return ""
    if place.kind == "loading":
        return "; it loads a library"
    waits = f"waits for {_AWAITED[place.waits_for]}" if place.waits_for in _AWAITED else "is"
    return f"; it {waits} in {place.kind}: {place.where}"


def _finding(
    kind: str,
    summary: str,
    vertex: pb.VertexDetails | None = None,
    subtask: pb.SubtaskDetails | None = None,
    place: Place | None = None,
) -> pb.JobFinding:
    named = {} if vertex is None else {"vertex_id": vertex.vertex_id, "vertex_name": vertex.name}
    finding = pb.JobFinding(kind=kind, summary=summary, subtask_index=-1, **named)
    if subtask is not None:
        finding.subtask_index, finding.resource_id = subtask.subtask_index, subtask.resource_id
    if place is not None:
        finding.stack.extend(place.stack)
    return finding


def _tasks(details: pb.JobDetails) -> list[_Task]:
    return [(vertex, subtask) for vertex in details.vertices for subtask in vertex.subtasks]


def _is_running(subtask: pb.SubtaskDetails) -> bool:
    return decode_state(subtask.state) is ExecutionState.RUNNING


def _back_pressured(details: pb.JobDetails) -> dict[str, str]:
    """Names of the vertices that are back-pressured, by id."""
    return {
        vertex.vertex_id: vertex.name
        for vertex in details.vertices
        if any(s.backpressured_ms_per_second >= PRESSED_MS for s in vertex.subtasks)
    }


def _not_acknowledged(waiting: pb.CheckpointDetails | None) -> Sequence[tuple[str, int, str]]:
    """Vertex, subtask and name of those that a checkpoint waits for."""
    if waiting is None:
        return ()
    return [
        (vertex.vertex_id, subtask.subtask_index, vertex.name)
        for vertex in waiting.vertices
        for subtask in vertex.subtasks
        if not subtask.acknowledge_timestamp_ms
    ]


def _name(vertex: pb.VertexDetails, subtask: pb.SubtaskDetails) -> str:
    """As Flink names a subtask: `map (2/4)`."""
    where = f" on {subtask.resource_id}" if subtask.resource_id else ""
    return f"{vertex.name} ({subtask.subtask_index + 1}/{vertex.parallelism}){where}"


def _duration(passed_ms: int) -> str:
    seconds = max(0, passed_ms) // 1000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
