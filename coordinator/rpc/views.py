"""What clients see of the cores: reads them, on their actor's thread, into the messages of `protos/client.proto`.

Pure functions without memory. A job that has ended is shown from the last view that was made of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from snapline.coordinator.checkpoint.statistics.stats import (
    CheckpointStats,
    CheckpointStatsSnapshot,
    CheckpointStatsStatus,
)
from snapline.coordinator.checkpoint.statistics.stats_summary import StatsSummarySnapshot
from snapline.coordinator.execution.execution_graph import Execution
from snapline.coordinator.jobmaster.job_master import JobMaster
from snapline.coordinator.jobmaster.operations import TappedRows
from snapline.coordinator.resource.resource_manager import ResourceManager
from snapline.dataflow.api.user_metrics import MetricValue, added_up
from snapline.dataflow.config import OPTIONS, Configuration, is_secret
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason, SerializedFailure
from snapline.dataflow.ids import CheckpointID, ExecutionVertexID
from snapline.dataflow.wire.codec import encode_into, encode_job_status, encode_state
from snapline.dataflow.wire.messages import JobStatus
from snapline.dataflow.wire.protobuf_fields import enum_tables
from snapline.protos import checkpoint_pb2
from snapline.protos import client_pb2 as pb
from snapline.runtime.logs import REDACTED

_STATUS = {
    CheckpointStatsStatus.IN_PROGRESS: pb.CHECKPOINT_STATUS_IN_PROGRESS,
    CheckpointStatsStatus.COMPLETED: pb.CHECKPOINT_STATUS_COMPLETED,
    CheckpointStatsStatus.FAILED: pb.CHECKPOINT_STATUS_FAILED,
}
_TYPE_TO_NUMBER, _ = enum_tables(SnapshotType, pb.CheckpointOverview.DESCRIPTOR.fields_by_name["snapshot_type"])
_PERCENTILES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))
_TERMINAL = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)

DEFAULT_ORIGIN = "default"
"""The origin of a setting that nobody has set."""


# --- jobs -------------------------------------------------------------------------------------------------------------


def job_overview(master: JobMaster, checkpoints: CheckpointStatsSnapshot) -> pb.JobOverview:
    """One line about a job."""
    graph = master.scheduler.graph
    since = graph.status_since_ms
    overview = pb.JobOverview(
        job_id=master.job_id,
        name=graph.job_graph.name,
        status=encode_job_status(master.status),
        start_time_ms=since[JobStatus.CREATED],
        end_time_ms=since[master.status] if master.status in _TERMINAL else 0,
        restarts=master.scheduler.restarts,
        subtasks_by_state=Counter(execution.state.value for execution in graph.executions),
        latest_completed_checkpoint_id=checkpoints.latest_completed.checkpoint_id
        if checkpoints.latest_completed
        else 0,
        status_detail=master.status_detail,
    )
    if master.scheduler.root_failure is not None:
        encode_into(master.scheduler.root_failure, overview.failure)
    elif master.scheduler.exceptions:
        encode_into(master.scheduler.exceptions[-1].failure, overview.failure)
    return overview


def job_details(master: JobMaster, checkpoints: CheckpointStatsSnapshot) -> pb.JobDetails:
    """A job with everything below it."""
    graph = master.scheduler.graph
    details = pb.JobDetails(
        overview=job_overview(master, checkpoints),
        configuration=graph.job_graph.configuration,
        configuration_origins=graph.job_graph.configuration_origins,
        submission_digest=graph.job_graph.submission_digest,
        status_timestamps_ms={status.value: at for status, at in graph.status_since_ms.items()},
        checkpoint_counts=checkpoint_counts(checkpoints),
        operator_failures=master.scheduler.operator_failures,
    )
    measured: list[MetricValue] = []
    for vertex in graph.job_graph.vertices:
        shown = details.vertices.add(
            vertex_id=vertex.vertex_id,
            name=vertex.name,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.max_parallelism,
            operator_uids=[operator.uid for operator in vertex.operators],
        )
        for index in range(vertex.parallelism):
            execution = graph.current(ExecutionVertexID(vertex.vertex_id, index))
            _fill_subtask(master, execution, shown.subtasks.add())
            counters = master.metrics.get(execution.vertex)
            if counters is not None and counters.attempt_id == execution.attempt_id:
                for value in counters.accumulators:
                    encode_into(value, details.accumulators.add())
                measured.extend(counters.user_metrics)
    for metric in added_up(measured):
        encode_into(metric, details.metrics.add())
    for edge in graph.job_graph.edges:
        encode_into(edge, details.edges.add())
    for entry in reversed(master.scheduler.exceptions):
        shown_failure = details.failures.add(
            timestamp_ms=entry.timestamp_ms, task_name=entry.task_name, resource_id=entry.resource_id
        )
        encode_into(entry.failure, shown_failure.failure)
    return details


def tapped_rows(parts: Iterable[TappedRows]) -> pb.TapOperatorResponse:
    """Rows that flowed past an operator, for a client."""
    return pb.TapOperatorResponse(
        parts=[
            pb.TappedRows(
                subtask_index=part.subtask_index, rows=part.rows, rows_taken=part.rows_taken, rows_seen=part.rows_seen
            )
            for part in parts
        ]
    )


def _fill_subtask(master: JobMaster, execution: Execution, shown: pb.SubtaskDetails) -> None:
    shown.subtask_index = execution.attempt_id.subtask_index
    shown.attempt_number = execution.attempt_id.attempt_number
    shown.state = encode_state(execution.state)
    shown.resource_id = execution.resource_id
    task_manager = master.task_managers.get(execution.resource_id)
    if task_manager is not None:
        shown.host = task_manager.info.host
    counters = master.metrics.get(execution.vertex)
    if counters is not None:
        shown.records_in = counters.records_in
        shown.records_out = counters.records_out
        shown.bytes_in = counters.bytes_in
        shown.bytes_out = counters.bytes_out
        shown.busy_ms = counters.busy_ms
        shown.backpressured_ms = counters.backpressured_ms
        shown.idle_ms = counters.idle_ms
        is_live = counters.attempt_id == execution.attempt_id and not execution.state.is_terminal
        if is_live:  # what an attempt did that has ended is no news
            shown.busy_ms_per_second = counters.busy_ms_per_second
            shown.backpressured_ms_per_second = counters.backpressured_ms_per_second
            shown.idle_ms_per_second = counters.idle_ms_per_second
            shown.records_in_per_second = counters.records_in_per_second
            shown.records_out_per_second = counters.records_out_per_second
            shown.step_ms = counters.step_ms
            shown.awaits = counters.awaits
            encode_into(counters.input_queue, shown.input_queue)
            encode_into(counters.output_queue, shown.output_queue)
    shown.watermark_ms = counters.watermark_ms if counters is not None else -(2**63)
    for state, at_ms in execution.timestamps_ms.items():
        shown.state_timestamps_ms[state.value] = at_ms
    if execution.failure is not None:
        encode_into(execution.failure, shown.failure)


def job_that_never_ran(
    job_id: str, name: str, status: JobStatus, at_ms: int, ended_ms: int, failure: SerializedFailure | None
) -> pb.JobDetails:
    """A job whose JobMaster has not begun, could not be built, or broke before anything could be read. `ended_ms`: 0
    while it is not over."""
    overview = pb.JobOverview(
        job_id=job_id, name=name, status=encode_job_status(status), start_time_ms=at_ms, end_time_ms=ended_ms
    )
    if failure is not None:
        encode_into(failure, overview.failure)
    return pb.JobDetails(overview=overview)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def checkpoint_counts(snapshot: CheckpointStatsSnapshot) -> pb.CheckpointCounts:
    """Return how many checkpoints have ended in each way, for clients."""
    counts = snapshot.counts
    return pb.CheckpointCounts(
        triggered=counts.total,
        in_progress=counts.in_progress,
        completed=counts.completed,
        failed=counts.failed,
        restored=counts.restored,
    )


def checkpoint_overview(
    master: JobMaster, stats: CheckpointStats, now_ms: int, retained: frozenset[CheckpointID]
) -> pb.CheckpointOverview:
    """One line about a checkpoint. `retained` are the completed ones whose files are still there."""
    totals = stats.totals
    overview = pb.CheckpointOverview(
        job_id=master.job_id,
        checkpoint_id=stats.checkpoint_id,
        status=_STATUS[stats.status],
        snapshot_type=_TYPE_TO_NUMBER[stats.snapshot_type],  # type: ignore[arg-type]
        trigger_timestamp_ms=stats.trigger_timestamp_ms,
        end_to_end_duration_ms=stats.duration_ms(now_ms),
        checkpointed_size_bytes=totals.checkpointed_size_bytes,
        state_size_bytes=totals.state_size_bytes,
        subtasks_total=totals.number_of_subtasks,
        subtasks_acknowledged=totals.number_of_acknowledged_subtasks,
        processed_data_bytes=totals.processed_data_bytes,
        persisted_data_bytes=totals.persisted_data_bytes,
        path=master.url_of(stats.location) if stats.location else "",
        discarded=stats.status is CheckpointStatsStatus.COMPLETED
        and not stats.snapshot_type.is_savepoint
        and stats.checkpoint_id not in retained,
    )
    if stats.failure_reason:
        overview.failure.CopyFrom(_failure(stats.failure_reason, stats.failure_detail))
    return overview


def _failure(reason: str, detail: str) -> pb.CheckpointFailure:
    known = CheckpointFailureReason.__members__.get(reason)
    number = checkpoint_pb2.CheckpointFailureReason.Value(f"CHECKPOINT_FAILURE_REASON_{reason}") if known else 0
    message = f"{known.message if known else reason} {detail}".strip()
    return pb.CheckpointFailure(reason=number, message=message)  # type: ignore[arg-type]


def list_checkpoints(
    master: JobMaster, snapshot: CheckpointStatsSnapshot, now_ms: int, retained: frozenset[CheckpointID]
) -> pb.ListCheckpointsResponse:
    """Counts, history, summaries, latest of each kind."""
    response = pb.ListCheckpointsResponse(
        counts=checkpoint_counts(snapshot),
        history=[checkpoint_overview(master, stats, now_ms, retained) for stats in snapshot.history],
        end_to_end_duration_ms=_summary(snapshot.duration),
        checkpointed_size_bytes=_summary(snapshot.checkpointed_size),
        state_size_bytes=_summary(snapshot.state_size),
        refusal=snapshot.refusal,
    )
    for latest, target in (
        (snapshot.latest_completed, response.latest_completed),
        (snapshot.latest_failed, response.latest_failed),
        (snapshot.latest_savepoint, response.latest_savepoint),
    ):
        if latest is not None:
            target.CopyFrom(checkpoint_overview(master, latest, now_ms, retained))
    restored = snapshot.latest_restored
    if restored is not None:
        response.restored_checkpoint_id = restored.checkpoint_id
        response.restored_timestamp_ms = restored.restore_timestamp_ms
        response.restored_path = master.url_of(restored.location)
    return response


def _summary(snapshot: StatsSummarySnapshot) -> pb.SummaryStatistics:
    summary = pb.SummaryStatistics(
        count=snapshot.count, min=snapshot.minimum, max=snapshot.maximum, average=snapshot.average
    )
    if snapshot.window:
        for name, share in _PERCENTILES:
            setattr(summary, name, snapshot.quantile(share))
    return summary


def checkpoint_details(
    master: JobMaster, stats: CheckpointStats, now_ms: int, retained: frozenset[CheckpointID]
) -> pb.CheckpointDetails:
    """One checkpoint by vertex and subtask. Subtasks that have not acknowledged are there without a time; those that
    had finished are not there."""
    details = pb.CheckpointDetails(overview=checkpoint_overview(master, stats, now_ms, retained))
    names = master.scheduler.graph.job_vertices
    reports = {report[:2]: report[2:] for report in stats.reports}
    for vertex_id, subtasks in stats.subtasks_that_take_part().items():
        vertex = names.get(vertex_id)
        shown = details.vertices.add(vertex_id=vertex_id, name=vertex.name if vertex else "")
        for index in subtasks:
            subtask = shown.subtasks.add(subtask_index=index)
            report = reports.get((vertex_id, index))
            if report is not None:
                subtask.acknowledge_timestamp_ms, subtask.state_size_bytes, subtask.checkpointed_size_bytes, _ = report
                encode_into(report[3], subtask.metrics)
    return details


# --- cluster ----------------------------------------------------------------------------------------------------------


def cluster_configuration(configuration: Configuration) -> pb.ClusterConfiguration:
    """Every setting there is: as the coordinator has it, secrets masked, and where it is from."""
    found = pb.ClusterConfiguration()
    for key, option in sorted(OPTIONS.items()):
        value = configuration.get(key, option.default)
        found.settings.add(
            key=key,
            value=REDACTED if value and is_secret(key) else value,
            origin=configuration.origins.get(key, "the coordinator") if key in configuration else DEFAULT_ORIGIN,
            description=option.description,
        )
    return found


def required_resources(manager: ResourceManager, releasable: Iterable[str] = ()) -> pb.RequiredResources:
    """Return how many slots are needed and how many are there, for clients."""
    slots = manager.slot_manager
    return pb.RequiredResources(
        required_slots=slots.required_slots,
        registered_slots=slots.registered_slots,
        free_slots=slots.free_slots,
        registered_task_managers=sum(1 for _ in manager.task_managers),
        releasable_task_managers=list(releasable),
    )


def task_managers(manager: ResourceManager) -> list[pb.TaskManagerDetails]:
    """All that are registered, longest first."""
    found = []
    for managed in manager.task_managers:
        details = pb.TaskManagerDetails(
            resource_id=managed.info.resource_id,
            host=managed.info.host,
            pid=managed.info.pid,
            exchange_address=managed.info.exchange_address,
            executor_id=managed.info.executor_id,
            log_url=managed.info.log_url,
            version=managed.info.version,
            slots=managed.info.slots,
            free_slots=managed.free,
            draining=managed.draining,
            registered_timestamp_ms=managed.registered_at_ms,
            last_heartbeat_timestamp_ms=manager.last_heard_of_ms(managed),
        )
        process = manager.process_of(managed.info.resource_id)
        if process is not None:
            encode_into(process.latest, details.process)
            details.clock_offset_ms = process.clock_offset_ms
            growth = process.growth
            details.memory_growth_bytes, details.memory_growth_ms = growth.grown_bytes, growth.over_ms
        found.append(details)
    return found
