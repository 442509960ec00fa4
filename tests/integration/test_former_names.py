"""A job graph that an earlier Snapline has stored, pickled under names that are gone: one line, and the other jobs
start.

`graph_of_former_names.txt` is such a graph, written by the Snapline before `snapline` was the only name (base64 of its
protobuf).
"""

from __future__ import annotations

import base64
import io
import json
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from snapline.client import ClusterClient, RequestRefused
from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.metadata import encode_pointer
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.coordinator.cluster_entrypoint import ClusterEntrypoint
from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.coordinator.dispatcher.held_jobs import former_module
from snapline.coordinator.ha.embedded import EmbeddedHighAvailability
from snapline.dataflow.config import Configuration
from snapline.dataflow.graph.jobgraph import JobGraph, JobVertex, OperatorNode, SavepointRestoreSettings
from snapline.dataflow.ids import CheckpointID, JobID, JobVertexID, LeaderSessionID, OperatorID
from snapline.dataflow.wire.codec import decode_job_graph, decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import job_pb2
from snapline.runtime.logs import make_logger
from snapline.runtime.rpc.security import Security
from snapline.runtime.storage.local_storage import LocalStorage

FORMER = decode_job_graph(
    job_pb2.JobGraph.FromString(base64.b64decode(Path(__file__).with_name("graph_of_former_names.txt").read_text()))
)
SETTINGS = {"high-availability.type": "embedded", "jobmanager.reconciliation.timeout": "10 ms"}


def waiting_job(name: str) -> JobGraph:
    """It never runs: there are no TaskManagers."""
    operator = OperatorNode(OperatorID("o" * 32), "source", "source", b"", is_source=True)
    return JobGraph(
        JobID(f"{name.replace(' ', '-'):a<32}"),
        name,
        (JobVertex(JobVertexID("v" * 32), "source", 1, 128, (operator,)),),
        (),
    )


class Coordinator:
    """A whole one inside the test's process, whose predecessor has stored two jobs."""

    def __init__(self, directory: Path, *checkpoints: int) -> None:
        self.directory = directory
        stored = EmbeddedHighAvailability(LocalStorage(str(directory / "ha")), LeaderSessionID("before"), durable=True)
        stored.job_graphs.put(FORMER)
        stored.job_graphs.put(waiting_job("waits"))
        pointers = stored.open_job(FORMER.job_id).pointers
        for number in checkpoints:
            properties = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION)
            checkpoint_id = CheckpointID(number)
            checkpoint = CompletedCheckpoint(
                FORMER.job_id, FORMER.name, checkpoint_id, 1, 2, properties, f"chk-{number}", ()
            )
            pointers.add(checkpoint_id, encode_pointer(checkpoint))
        self.log = io.StringIO()

    def __enter__(self) -> Coordinator:
        directories = {
            "high-availability.storageDir": str(self.directory / "ha"),
            "execution.checkpointing.dir": str(self.directory / "checkpoints"),
        }
        config = CoordinatorConfig("127.0.0.1:0", Configuration({**SETTINGS, **directories}), metrics_port=0)
        self.entrypoint = ClusterEntrypoint(config, make_logger("coordinator", stream=self.log), on_fatal=lambda: None)
        self.client = ClusterClient(self.entrypoint.start(), Security())
        while self.client.required_resources().required_slots != 1:  # the other job has begun
            pass
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.entrypoint.stop()

    @property
    def errors(self) -> list[str]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line["msg"] for line in lines if line["level"] == "ERROR"]

    @property
    def metrics(self) -> str:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        port = next(line["context"]["port"] for line in lines if line["msg"] == "metrics are served")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            return answer.read().decode()

    def status(self, name: str) -> JobStatus:
        return {job.name: decode_job_status(job.status) for job in self.client.list_jobs()}[name]


def line(way_on: str) -> str:
    return (
        f"job 'sums by the former names' ({FORMER.job_id}) was stored by an earlier Snapline, whose names it is pickled under "
        f"(dataflow.operator_specs), and is not started; {way_on}"
    )


def test_a_stored_graph_of_former_names_is_told_in_one_line_and_other_jobs_start(tmp_path):
    """The line names the job's latest checkpoint and the command; whoever looks at the job reads it, too, and an alert
    on jobs that have failed sees it."""
    with Coordinator(tmp_path, 7, 12) as coordinator:
        latest = f"{(tmp_path / 'checkpoints').as_uri()}/{FORMER.job_id}/chk-12"
        expected = line(
            f"start its program again, with the present names, from its latest checkpoint: snapline run --from-savepoint {latest} PROGRAM"
        )
        assert [expected] == coordinator.errors
        assert JobStatus.FAILED is coordinator.status(FORMER.name)
        assert coordinator.status("waits") in {JobStatus.CREATED, JobStatus.RECONCILING, JobStatus.RESTARTING}
        assert expected == coordinator.client.get_job(FORMER.job_id).overview.failure.summary
        assert f'failedState{{job_id="{FORMER.job_id}",job_name="{FORMER.name}"}} 1.0' in coordinator.metrics
        with pytest.raises(RequestRefused, match="was stored by an earlier Snapline"):
            coordinator.client.submit(waiting_job(FORMER.name))
    with Coordinator(tmp_path) as again:  # nothing of it was touched
        assert [expected] == again.errors


def test_the_job_goes_on_under_another_id_and_the_stored_one_is_gone(tmp_path):
    """A submission of its name that starts from a snapshot takes its place, for the next leader as well."""
    with Coordinator(tmp_path) as coordinator:
        goes_on = replace(waiting_job("z"), name=FORMER.name, job_id=JobID("b" * 32))
        no_snapshot = SavepointRestoreSettings(str(tmp_path / "nothing"))
        with pytest.raises(RequestRefused, match="nothing"):  # taken, and then there is no such snapshot
            coordinator.client.submit(replace(goes_on, savepoint_restore=no_snapshot))
        assert [line(f"it has completed no checkpoint: cancel it (snapline cancel {FORMER.job_id}) and start its program "
                     "again, with the present names")] == coordinator.errors  # fmt: skip
        coordinator.client.cancel(FORMER.job_id)
        assert goes_on.job_id == coordinator.client.submit(goes_on)
    stored = EmbeddedHighAvailability(LocalStorage(str(tmp_path / "ha")), LeaderSessionID("after"), durable=True)
    assert ["waits", FORMER.name] == [graph.name for graph in stored.job_graphs.load().graphs]
    assert ["", ""] == [former_module(graph) for graph in stored.job_graphs.load().graphs]


def test_a_program_with_an_earlier_snapline_is_told_so(tmp_path):
    """Its graph is refused before anything of it is stored."""
    with (
        Coordinator(tmp_path) as coordinator,
        pytest.raises(RequestRefused, match="has an earlier Snapline; give it this"),
    ):
        coordinator.client.submit(replace(FORMER, job_id=JobID("c" * 32), name="another"))
