"""Archived jobs with any content, shown in every way in which one that has ended is shown: one that nobody can show
must not keep the others from being shown."""

from __future__ import annotations

import json
import random
from typing import Any

from google.protobuf.message import Message

from snapline import pictures
from snapline.commands import job_commands
from snapline.coordinator import coordinator_metrics
from snapline.coordinator.diagnosis.explanation import explain
from snapline.coordinator.ha.job_archive import DIRECTORY, JobArchive
from snapline.coordinator.job_registry import EndedJob
from snapline.coordinator.rpc.job_pages import page_of_jobs, shorten_causes
from snapline.coordinator.web import flink_checkpoints, flink_cluster, flink_jobs
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.message_json import message_as_dict
from snapline.protos import client_pb2 as pb
from snapline.runtime.storage.memory_storage import MemoryStorage
from tests.fuzz.drawn_inputs import fill, mutate

JOB = "a" * 32
NOW_MS = 1_700_000_000_000


def draw_archived_job(rng: random.Random) -> bytes:
    """Any content below a job id that fits the name of its file."""
    job = pb.ArchivedJob()
    fill(rng, job, depth=-1)
    if rng.random() < 0.8:
        _make_plausible(rng, job)
    job.details.overview.job_id = JOB
    data = job.SerializeToString()
    return mutate(rng, data) if rng.random() < 0.3 else data


def _make_plausible(rng: random.Random, message: Message) -> None:
    """Give statuses and times that the archive takes, so that more is looked at than these."""
    for field in message.DESCRIPTOR.fields:
        if field.enum_type is not None and field.name in ("status", "state"):
            setattr(message, field.name, rng.choice([each.number for each in field.enum_type.values if each.number]))
        if field.name == "overview":
            getattr(message, field.name).SetInParent()
        if field.name.endswith("time_ms") or field.name.endswith("timestamp_ms"):
            setattr(message, field.name, rng.choice((0, 1, NOW_MS, NOW_MS + 5)))
    for field, value in message.ListFields():
        for each in value if hasattr(value, "append") else [] if hasattr(value, "values") else [value]:
            if isinstance(each, Message):
                _make_plausible(rng, each)
            elif field.name.endswith("timestamps_ms"):
                message.ClearField(field.name)
                break


def show_archived_job(data: bytes) -> object:
    """What the archive makes of it, in the commands, on the page, in Flink's REST API and in metrics."""
    storage = MemoryStorage("archive")
    storage.put(f"{DIRECTORY}/{NOW_MS:015d}-{JOB}", data)
    (job,) = JobArchive(storage, 10, 0).load(NOW_MS).jobs
    ended = EndedJob.from_archive(job)
    details, overview, checkpoints = ended.details, ended.details.overview, ended.checkpoints
    page_of_jobs({JobID(overview.job_id): overview.start_time_ms}, 1, "")
    said: list[Any] = [job_commands.history_row(shorten_causes(overview)), job_commands.job_row(overview)]
    said += [job_commands.vertex_row(vertex) for vertex in details.vertices]
    said += [job_commands.checkpoint_row(each) for each in checkpoints.history]
    said += [job_commands.vertex_checkpoint_row(vertex) for each in ended.by_id.values() for vertex in each.vertices]
    said += [pictures.picture_of_job(details, checkpoints, pictures.Rates())]
    said += [message_as_dict(each) for each in (details, checkpoints, *ended.by_id.values())]
    said += [flink_jobs.jobs_overview([overview], NOW_MS)]
    said += [translate(details, NOW_MS) for translate in (flink_jobs.job_details,)]
    for of_job in (
        flink_jobs.job_plan, flink_jobs.job_config, flink_jobs.job_accumulators, flink_jobs.execution_result,
        flink_jobs.job_exceptions, flink_checkpoints.checkpoint_config,
    ):  # fmt: skip
        said.append(of_job(details))
    for vertex in details.vertices:
        for of_vertex in (
            flink_jobs.vertex_details, flink_jobs.back_pressure, flink_jobs.vertex_task_managers, flink_jobs.subtask_times,
        ):  # fmt: skip
            said.append(of_vertex(vertex, NOW_MS))
        said += [flink_jobs.vertex_accumulators(vertex), flink_jobs.subtask_accumulators(vertex)]
        said += [flink_cluster.watermarks(vertex), flink_cluster.vertex_figures(vertex)]
    said += [flink_cluster.job_figures(details, checkpoints, NOW_MS)]
    said += [flink_checkpoints.checkpointing_statistics(checkpoints)]
    for each in ended.by_id.values():
        said.append(flink_checkpoints.checkpoint_statistics(each.overview, each))
        said += [flink_checkpoints.task_statistics(each, vertex) for vertex in each.vertices]
    said += [explain(details, checkpoints, None, (), NOW_MS).summary, *coordinator_metrics._ended_job(details)]
    return json.dumps(said, default=str)
