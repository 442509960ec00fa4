"""Metrics of users' functions as Prometheus is shown them."""

from __future__ import annotations

import urllib.request

from prometheus_client import CollectorRegistry, generate_latest

from snapline.coordinator.user_metric_samples import families_of, user_values_of
from snapline.dataflow.api.user_metrics import MetricValue
from snapline.dataflow.wire.messages import HeartbeatResponse, TaskMetrics
from snapline.runtime.logs import silent_logger
from snapline.runtime.metrics import MetricsServer
from tests.unit.coordinator.jobmaster.test_job_master import Story, attempt

TASK = {"job_id": "j", "job_name": "n", "subtask_index": "0"}
LABELS = 'job_id="j",job_name="n",operator_uid="parse",subtask_index="0"'


class Collected:
    """The families, for a registry."""

    def __init__(self, *values: MetricValue) -> None:
        self.values = values

    def collect(self):
        return families_of((TASK, value) for value in self.values)


def scraped(*values: MetricValue) -> list[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected(*values))
    return generate_latest(registry).decode().splitlines()


def test_each_kind_has_its_type() -> None:
    """A counter ends in `_total`, the buckets of a histogram are cumulative."""
    lines = scraped(
        MetricValue("parse", "bad", "counter", 3.0),
        MetricValue("parse", "queue", "gauge", 7.0),
        MetricValue("parse", "sizes", "histogram", 12.0, (1.0, 10.0), (1, 2, 1)),
    )
    name = "snapline_taskmanager_job_task_operator"
    assert f"# TYPE {name}_bad_total counter" in lines
    assert f"{name}_bad_total{{{LABELS}}} 3.0" in lines
    assert f"{name}_queue{{{LABELS}}} 7.0" in lines
    buckets = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{name}_sizes_bucket")]
    assert buckets == ["1.0", "3.0", "4.0"]
    assert f"{name}_sizes_sum{{{LABELS}}} 12.0" in lines


def test_bounds_of_buckets_are_written_in_full() -> None:
    """Six digits made one bound of two that lie close, with two values, and a mebibyte 4 bytes too large; a bound that
    is endless is that of all values."""
    bounds = (0.001, 1_048_576.0, 1_048_577.0, 1.7e12, 1.7e12 + 1, float("inf"))
    lines = scraped(MetricValue("parse", "sizes", "histogram", 12.0, bounds, (1, 2, 3, 4, 5, 6, 0)))
    buckets = [line.partition('le="')[2].partition('"')[0] for line in lines if "_sizes_bucket" in line]
    assert ["0.001", "1048576", "1048577", "1700000000000", "1700000000001", "+Inf"] == buckets
    assert [line.rsplit(" ", 1)[1] for line in lines if "_sizes_count" in line] == ["21.0"]


def test_latencies_have_their_source_and_what_is_not_sound_is_left_out() -> None:
    """Two kinds under one name do not spoil the page."""
    lines = scraped(
        MetricValue("parse", "latency", "histogram", 4.0, (5.0,), (2, 0), "orders"),
        MetricValue("parse", "rows", "counter", 1.0),
        MetricValue("check", "rows", "gauge", 2.0),
        MetricValue("parse", "newer", "of a newer version"),
        MetricValue("parse", "broken", "histogram", 1.0, (1.0,), (1,)),
    )
    assert any(
        "latency_ms_count{" in line and 'source_uid="orders"' in line and line.endswith(" 2.0") for line in lines
    )
    assert any("_rows_total{" in line for line in lines)
    assert any("_rows_gauge{" in line for line in lines)
    assert not any("newer" in line or "broken" in line for line in lines)


def test_what_running_tasks_have_said_is_shown_with_the_labels_of_their_task() -> None:
    """The counters of the last heartbeats, read off a JobMaster."""
    story = Story().run()
    said = TaskMetrics(attempt(), user_metrics=(MetricValue("parse", "rows", "counter", 5.0),))
    story.hears("a", HeartbeatResponse(metrics=(said,), executions=(attempt(),)))
    ((labels, value),) = user_values_of(story.core)
    assert value.value == 5.0
    assert labels == {
        "job_id": "job-one",
        "job_name": "one",
        "task_id": "source",
        "task_name": "source",
        "subtask_index": "0",
        "task_attempt_num": "0",
        "tm_id": "a",
        "host": "host",
    }


def test_families_are_served_beside_the_samples() -> None:
    """One that cannot be read is logged and left out."""
    values = [(TASK, MetricValue("parse", "bad", "counter", 3.0))]
    server = MetricsServer(list, silent_logger(), lambda: families_of(values))
    port = server.start("127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert "snapline_taskmanager_job_task_operator_bad_total{" in answer.read().decode()
        values[:] = [(TASK, None)]  # type: ignore[list-item]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert "operator_bad" not in answer.read().decode()
    finally:
        server.stop()
