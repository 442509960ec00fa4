"""Metrics as Prometheus gets them."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import silent_logger
from snapline.runtime.metrics import Kind, MetricsServer, Sample


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture
def served():
    samples: list[Any] = []
    server = MetricsServer(lambda: [s() if callable(s) else s for s in samples], silent_logger())
    port = server.start("127.0.0.1", 0)
    yield samples, port
    server.stop()


def test_names_are_flinks(served):
    """Scope, name and labels, read at the moment of the scrape."""
    samples, port = served
    for number, job in enumerate(("a", "b"), 1):
        samples.append(Sample("jobmanager_job", "numberOfCompletedCheckpoints", number, {"job_id": job}))
    text = scrape(port)
    assert 'snapline_jobmanager_job_numberOfCompletedCheckpoints{job_id="a"} 1.0' in text
    assert 'snapline_jobmanager_job_numberOfCompletedCheckpoints{job_id="b"} 2.0' in text
    assert text.count("# TYPE snapline") == 1


def test_a_counter_is_one_and_everything_has_help(served):
    """Kinds and sentences are the sample's; figures of the process are there as well."""
    samples, port = served
    samples.append(Sample("jobmanager_job", "numRestarts", 3, {"job_id": "a"}, Kind.COUNTER, "How often."))
    text = scrape(port)
    assert "# HELP snapline_jobmanager_job_numRestarts_total How often." in text
    assert "# TYPE snapline_jobmanager_job_numRestarts_total counter" in text
    assert 'snapline_jobmanager_job_numRestarts_total{job_id="a"} 3.0' in text
    assert "process_cpu_seconds_total" in text


def test_a_source_that_fails_gives_an_empty_page(served):
    """Not an error page: Prometheus would drop the target."""
    samples, port = served
    samples.append(lambda: 1 / 0)
    assert "snapline" not in scrape(port)


def test_a_taken_port_is_one_clear_line(served):
    """With the way out."""
    _samples, port = served
    with pytest.raises(SnaplineError, match=f"cannot serve metrics on 127.0.0.1:{port}: Address already in use"):
        MetricsServer(list, silent_logger()).start("127.0.0.1", port)
