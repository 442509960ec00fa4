"""The commands about one job of a cluster, or all of them: `list`, `status`, `history`, `checkpoints`, `tap`, `cancel`,
`rescale`, `stop`."""

from __future__ import annotations

import json

import click

from snapline.commands.printing import echo
from snapline.commands.process_table import PROCESS_COLUMNS, process_row, seen_task_managers
from snapline.commands.target import Target, absolute, time_text, with_target
from snapline.dataflow.key_groups import UPPER_BOUND_MAX_PARALLELISM
from snapline.dataflow.wire.message_json import message_as_dict
from snapline.dataflow.wire.statuses import decode_job_status
from snapline.protos import checkpoint_pb2, job_pb2
from snapline.protos import client_pb2 as pb

MOST = (1 << 63) - 1
"""The greatest number that a request has room for."""
PARALLELISM = click.IntRange(1, UPPER_BOUND_MAX_PARALLELISM)


@click.command("list")
@with_target
def list_jobs(target: Target) -> None:
    """List all jobs of the cluster, the newest first."""
    with target.client() as client:
        jobs = client.list_jobs()
    target.show(jobs, ["JOB ID", "NAME", "STATUS", "STARTED", "RESTARTS", "CHECKPOINT"], job_row)


@click.command()
@click.argument("job")
@with_target
def status(target: Target, job: str) -> None:
    """One job with its tasks. JOB is an id, the beginning of one, or a name."""
    with target.client() as client:
        details = client.get_job(client.resolve_job(job))
        runs_on = {subtask.resource_id for vertex in details.vertices for subtask in vertex.subtasks}
        hosts = [] if target.as_json else [each for each in seen_task_managers(client) if each.resource_id in runs_on]
        found = None if target.as_json else client.explain_job(details.overview.job_id, without_stacks=True)
    if target.as_json:
        echo(json.dumps(message_as_dict(details), indent=2))
        return
    overview = details.overview
    echo(
        f"{overview.name} ({overview.job_id})  {decode_job_status(overview.status).value}  {overview.restarts} restarts"
    )
    if overview.status_detail:
        echo(overview.status_detail)
    if overview.HasField("failure"):
        echo(f"last failure: {overview.failure.summary}")
    if details.operator_failures:
        each = sorted(details.operator_failures.items(), key=lambda item: (-item[1], item[0]))
        echo(f"failures by operator: {', '.join(f'{uid} {count:,}' for uid, count in each)}")
    if found is not None and found.findings:
        echo(f"{found.findings[0].kind}: {found.findings[0].summary} (snapline why says more)")
    target.show(
        list(details.vertices),
        ["TASK", "PARALLELISM", "STATES", "ROWS IN", "ROWS OUT", "BUSIEST", "BACK-PRESSURED", "ROWS/S"],
        vertex_row,
    )
    if hosts:
        target.show(hosts, PROCESS_COLUMNS, process_row)


@click.command()
@with_target
def history(target: Target) -> None:
    """Jobs that have ended, the latest first; `snapline status JOB` and `snapline checkpoints JOB` show one of them."""
    with target.client() as client:
        jobs = _ended_jobs(client.list_jobs())
    target.show(jobs, ["JOB ID", "NAME", "STATUS", "STARTED", "ENDED", "RESTARTS", "CAUSE"], history_row)


@click.command()
@click.argument("job")
@with_target
def cancel(target: Target, job: str) -> None:
    """Cancel a job; its committed output and retained checkpoints stay."""
    with target.client() as client:
        job_id = client.resolve_job(job)
        client.cancel(job_id)
    echo(json.dumps({"job_id": job_id}) if target.as_json else f"cancelling {job_id}")


@click.command()
@click.argument("job")
@click.option("--parallelism", "-p", type=PARALLELISM, required=True, help="subtasks of every vertex")
@with_target
def rescale(target: Target, job: str, parallelism: int) -> None:
    """Give a running job another parallelism: it stands still from the end of a checkpoint until its tasks run again.

    The job goes on as it is until the slots are there; if they do not come (slot.request.timeout), it stays so, and
    exit code 1 says it. Until then `snapline status` says what is waited for, another rescale takes its place, and the
    parallelism that the job has takes it back. Ctrl-C ends this command only.
    """
    with target.client() as client:
        job_id = client.resolve_job(job)
        try:
            client.rescale(job_id, parallelism)
        except KeyboardInterrupt:
            goes_on = f"the rescale goes on; while it waits for slots, `snapline rescale {job} -p N` takes it back with the N of before"
            raise KeyboardInterrupt(goes_on) from None
    answer = {"job_id": job_id, "parallelism": parallelism}
    echo(json.dumps(answer) if target.as_json else f"{job_id} runs with parallelism {parallelism}")


@click.command()
@click.argument("job")
@click.option("--directory", "-p", default="", help="where the savepoint goes")
@click.option("--drain", is_flag=True, help="fire all windows and timers first; the job ends for good")
@with_target
def stop(target: Target, job: str, directory: str, *, drain: bool) -> None:
    """Stop a job with a savepoint; prints its path."""
    with target.client() as client:
        job_id = client.resolve_job(job)
        try:
            path = client.stop_with_savepoint(job_id, absolute(directory), drain=drain)
        except KeyboardInterrupt:
            goes_on = f"job {job_id} stops all the same; `snapline checkpoints {job_id}` names its savepoint then"
            raise KeyboardInterrupt(goes_on) from None
    echo(json.dumps({"path": path}) if target.as_json else path)


@click.command()
@click.argument("job")
@click.option(
    "--id", "checkpoint_id", type=click.IntRange(1, MOST), help="this one, task by task: what its slowest subtask took"
)
@with_target
def checkpoints(target: Target, job: str, checkpoint_id: int | None) -> None:
    """Checkpoints of a job, newest first."""
    with target.client() as client:
        job_id = client.resolve_job(job)
        if checkpoint_id is not None:
            _show_checkpoint(target, client.get_checkpoint(job_id, checkpoint_id))
            return
        answer = client.list_checkpoints(job_id)
    if target.as_json:
        echo(json.dumps(message_as_dict(answer), indent=2))
        return
    counts = answer.counts
    echo(
        f"{counts.triggered} triggered, {counts.completed} completed, {counts.failed} failed, "
        f"{counts.in_progress} in progress, {counts.restored} restored"
    )
    if answer.latest_savepoint.path:
        echo(f"latest savepoint: {answer.latest_savepoint.path}")
    if answer.refusal:
        echo(f"none can be triggered: {answer.refusal}")
    target.show(
        list(answer.history), ["ID", "KIND", "STATUS", "ACKS", "TRIGGERED", "DURATION", "SIZE", "WHY"], checkpoint_row
    )


@click.command()
@click.argument("job")
@click.argument("uid")
@click.option("--rows", type=click.IntRange(1, 10_000), default=10, show_default=True, help="rows a second, at most")
@click.option(
    "--bytes",
    "max_bytes",
    type=click.IntRange(1, MOST),
    default=65_536,
    show_default=True,
    help="bytes a second, at most",
)
@click.option("--limit", type=click.IntRange(min=1), help="end after so many rows; else with Ctrl-C or the job")
@with_target
def tap(target: Target, job: str, uid: str, *, rows: int, max_bytes: int, limit: int | None) -> None:
    """Show rows that the operator UID of a running job puts out, a JSON object a line."""
    from snapline.tapped import as_json, follow

    with target.client() as client:
        job_id = client.resolve_job(job)
        for row in follow(client, job_id, uid, rows_per_second=rows, bytes_per_second=max_bytes, limit=limit):
            echo(as_json(row))


def _ended_jobs(jobs: list[pb.JobOverview]) -> list[pb.JobOverview]:
    """Those that have ended, the latest end first."""
    over = [job for job in jobs if decode_job_status(job.status).is_globally_terminal]
    return sorted(over, key=lambda job: -job.end_time_ms)


def job_row(job: pb.JobOverview) -> list[str]:
    """A job as `snapline list` has it."""
    return [
        job.job_id,
        job.name,
        decode_job_status(job.status).value,
        time_text(job.start_time_ms),
        str(job.restarts),
        str(job.latest_completed_checkpoint_id or "-"),
    ]


def history_row(job: pb.JobOverview) -> list[str]:
    """A job as `snapline history` has it."""
    job_id, name, status_now, started, restarts, _ = job_row(job)
    cause = job.failure.summary if job.HasField("failure") else ""
    return [job_id, name, status_now, started, time_text(job.end_time_ms), restarts, cause]


def vertex_row(vertex: pb.VertexDetails) -> list[str]:
    """A vertex as `snapline status` has it."""
    states: dict[str, int] = {}
    for subtask in vertex.subtasks:
        name = job_pb2.ExecutionState.Name(subtask.state).removeprefix("EXECUTION_STATE_")
        states[name] = states.get(name, 0) + 1
    busiest = max(vertex.subtasks, key=lambda s: s.busy_ms_per_second, default=pb.SubtaskDetails())
    pressed = max((s.backpressured_ms_per_second for s in vertex.subtasks), default=0)
    which = f" ({busiest.subtask_index + 1}/{vertex.parallelism})" if vertex.parallelism > 1 else ""
    return [
        vertex.name,
        str(vertex.parallelism),
        ", ".join(f"{n} {name}" for name, n in sorted(states.items())),
        f"{sum(s.records_in for s in vertex.subtasks):,}",
        f"{sum(s.records_out for s in vertex.subtasks):,}",
        f"{busiest.busy_ms_per_second // 10} %{which}",
        f"{pressed // 10} %",
        f"{sum(s.records_in_per_second for s in vertex.subtasks):,}",
    ]


def checkpoint_row(checkpoint: pb.CheckpointOverview) -> list[str]:
    """A checkpoint as `snapline checkpoints` has it."""
    return [
        str(checkpoint.checkpoint_id),
        checkpoint_pb2.SnapshotType.Name(checkpoint.snapshot_type).removeprefix("SNAPSHOT_TYPE_").lower(),
        pb.CheckpointStatus.Name(checkpoint.status).removeprefix("CHECKPOINT_STATUS_").lower(),
        f"{checkpoint.subtasks_acknowledged}/{checkpoint.subtasks_total}",
        time_text(checkpoint.trigger_timestamp_ms),
        f"{checkpoint.end_to_end_duration_ms} ms",
        f"{checkpoint.checkpointed_size_bytes:,} B",
        checkpoint.failure.message if checkpoint.HasField("failure") else "",
    ]


def _show_checkpoint(target: Target, details: pb.CheckpointDetails) -> None:
    if target.as_json:
        echo(json.dumps(message_as_dict(details), indent=2))
        return
    columns = ["TASK", "ACKS", "START DELAY", "ALIGNMENT", "SYNC", "ASYNC", "SIZE"]
    target.show(list(details.vertices), columns, vertex_checkpoint_row)


def vertex_checkpoint_row(vertex: pb.VertexCheckpointDetails) -> list[str]:
    """What a vertex did for a checkpoint, as `snapline checkpoints --id` has it."""
    metrics = [subtask.metrics for subtask in vertex.subtasks]
    slowest = (
        max((m.checkpoint_start_delay_ms for m in metrics), default=0),
        max((m.alignment_duration_ms for m in metrics), default=0),
        max((m.sync_duration_ms for m in metrics), default=0),
        max((m.async_duration_ms for m in metrics), default=0),
    )
    return [
        vertex.name,
        f"{sum(1 for s in vertex.subtasks if s.acknowledge_timestamp_ms)}/{len(vertex.subtasks)}",
        *(f"{ms} ms" for ms in slowest),
        f"{sum(s.state_size_bytes for s in vertex.subtasks):,} B",
    ]
