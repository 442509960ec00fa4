"""Traces of a job over OTLP: its start, a checkpoint, a restart, a rescale."""

from __future__ import annotations

import re
import sys

import pytest

from snapline.coordinator.trace_reporter import open_trace_reporter
from snapline.dataflow.config import Configuration, ConfigurationError
from tests.integration.savepoint_job import build
from tests.services.cluster import LocalCluster

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the extra otlp is missing")

from tests.services.otlp import OtlpReceiver, attributes_of


def test_start_checkpoint_restart_and_rescale_are_spans(tmp_path):
    """A job runs, its TaskManager is killed, and it goes on with more subtasks: who was it, how long, and why."""
    with OtlpReceiver() as receiver:
        settings = {
            "traces.reporter.otel.exporter.endpoint": receiver.endpoint,
            "traces.reporter.otel.service.name": "night",
            "heartbeat.timeout": "6 s",
        }
        with LocalCluster(tmp_path / "cluster", slots=(2, 2), settings=settings) as cluster:
            options = ["--output", str(tmp_path / "out"), "--rate", "1000", "--parallelism", "1"]
            job_id = cluster.submit(build(cluster.environment(1, "100 ms"), options), "orders")
            cluster.wait_for_checkpoints(job_id, 2)
            cluster.on(cluster.client.get_job(job_id).vertices[0].subtasks[0].resource_id).kill()
            restart = receiver.wait_for("JobRestart")
            cluster.wait_for_checkpoints(job_id, 5)
            details = cluster.client.get_job(job_id)
            cluster.client.rescale(job_id, 2)
            rescale = receiver.wait_for("JobRescale")
            cluster.cancel(job_id)
        begun = receiver.wait_for("JobInitialization")
        checkpoint = receiver.wait_for(
            "Checkpoint", lambda span: attributes_of(span)["checkpointStatus"] == "COMPLETED"
        )
    assert {"service.name": "night"}.items() <= receiver.resources[0].items()
    for span in (begun, checkpoint, restart, rescale):
        assert {"jobId": job_id, "jobName": "orders"}.items() <= attributes_of(span).items()
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    assert attributes_of(restart)["cause"] == details.failures[0].failure.summary
    assert attributes_of(rescale)["to"] > attributes_of(rescale)["from"]
    assert attributes_of(checkpoint)["subtasks"] == attributes_of(checkpoint)["acknowledgedSubtasks"] > 0


@pytest.mark.parametrize(
    "endpoint", ["collector:4317", "http://", "http://[::1:4317", "http://collector:99999", "http://collector:otlp"]
)
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str):
    """Before anything starts, with the form that it should have."""
    form = f"has to be a URL such as http://127.0.0.1:4317, not {endpoint!r}"
    with pytest.raises(ConfigurationError, match=re.escape(form)):
        open_trace_reporter(Configuration({"traces.reporter.otel.exporter.endpoint": endpoint}))


def test_without_the_packages_the_setting_says_what_to_install(monkeypatch):
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ConfigurationError, match=r"needs the extra otlp \(pip install 'snapline\[otlp\]'\)"):
        open_trace_reporter(Configuration({"traces.reporter.otel.exporter.endpoint": "http://127.0.0.1:1"}))
