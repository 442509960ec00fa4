"""The alert rules and the dashboard of `deploy/` against what a coordinator with a running job really exports."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from snapline import GeneratorSource, StreamExecutionEnvironment, WatermarkStrategy, count
from snapline.client import ClusterClient
from snapline.connectors import DiscardingSink, FileSink
from snapline.coordinator.cluster_entrypoint import ClusterEntrypoint
from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.dataflow.config import Configuration
from snapline.runtime.logs import make_logger
from snapline.runtime.rpc.security import Security
from tests.services.cluster import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "snapline.json"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="NO PROMTOOL: apt-get install prometheus")
NAME = re.compile(r"\b(?:snapline|process)_[a-zA-Z_]+")
LABEL = re.compile(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cluster is up before anything counts what a test leaves behind."""
    if "scraped" in metafunc.fixturenames:
        metafunc.fixturenames.insert(0, "scraped")


@contextmanager
def observed(settings: dict[str, str], slots: int) -> Iterator[tuple[ClusterClient, int]]:
    """A coordinator with a TaskManager: a client, and the port of its metrics."""
    log = io.StringIO()
    config = CoordinatorConfig("127.0.0.1:0", Configuration(settings), metrics_port=0)
    entrypoint = ClusterEntrypoint(config, make_logger("coordinator", stream=log), on_fatal=lambda: None)
    address = entrypoint.start()
    (port,) = [
        line["context"]["port"] for line in map(json.loads, log.getvalue().splitlines()) if "metrics" in line["msg"]
    ]
    command = [sys.executable, "-m", "snapline.taskmanager", "--coordinator", address, "--slots", str(slots)]
    command += [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)

    try:
        with ClusterClient(address, Security()) as client:
            yield client, port
    finally:
        process.terminate()
        process.wait(30)
        entrypoint.stop()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What Prometheus gets while a window over event time runs and has completed a checkpoint."""
    settings = {"execution.checkpointing.dir": str(tmp_path_factory.mktemp("checkpoints"))}
    settings |= {"execution.checkpointing.interval": "200 ms", "heartbeat.interval": "200 ms"}
    found = [""]
    with observed(settings, slots=1) as (client, port):

        def is_all_there() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                found[0] = str(answer.read().decode())
            return all(name in found[0] for name in ("watermarkLag", "lastCheckpointDuration"))

        client.submit(windows(settings).translate("windows").job_graph)
        wait_until(is_all_there, "figures of tasks and of a checkpoint")
        yield found[0]


def windows(settings: dict[str, str]) -> StreamExecutionEnvironment:
    """A job that goes on until it is stopped."""
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    source = GeneratorSource(keys=4, rows_per_second=5_000, event_time_column="at", event_interval_us=200)
    rows = environment.from_source(source, WatermarkStrategy.for_monotonous_timestamps("at"), uid="rows")
    rows.key_by("key").running_aggregate(uid="sums", n=count()).sink_to(DiscardingSink(), uid="nowhere")
    return environment


def test_errors_of_a_sink_are_counted_over_attempts_and_after_the_end(tmp_path: Path) -> None:
    """Its directory is taken away; the figure is of the job and the operator, since each attempt begins at nothing."""
    out = tmp_path / "out"
    settings = {"execution.checkpointing.dir": str(tmp_path / "checkpoints"), "heartbeat.interval": "200 ms"}
    settings |= {"execution.checkpointing.interval": "100 ms", "restart-strategy.type": "fixed-delay"}
    settings |= {"restart-strategy.fixed-delay.attempts": "1", "restart-strategy.fixed-delay.delay": "0 ms"}
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    rows = environment.from_source(GeneratorSource(keys=4, rows_per_second=5_000), uid="rows")
    rows.sink_to(FileSink(out, "csv"), uid="files")
    with observed(settings, slots=1) as (client, port):
        job_id = client.submit(environment.translate("writes").job_graph)
        wait_until(lambda: out.exists() and any(out.glob("*.csv")), "the first files")
        out.rename(tmp_path / "moved")
        out.write_text("no directory")
        list(client.watch_job(job_id))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        counted = (
            f'snapline_jobmanager_job_numOperatorFailures_total{{job_id="{job_id}",job_name="writes",operator_uid='
        )
        found = {line for line in text.splitlines() if line.startswith(counted)}
        assert found == {f'{counted}"files"}} 2.0', f'{counted}"rows"}} 0.0'}


def rules() -> list[dict[str, Any]]:
    """All alert rules."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def targets() -> list[dict[str, Any]]:
    """All queries of the dashboard."""
    return [target for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]


def labels_by_name(text: str) -> dict[str, set[str]]:
    """The labels of each sample, by its name."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            found.setdefault(each.name, set()).update(each.labels)
    return found


def test_rules_and_dashboard_name_what_is_exported(scraped: str) -> None:
    """Every figure that they ask for is there, with every label that they group or speak by."""
    exported = labels_by_name(scraped)
    asked = [(rule["expr"], rule["annotations"]["summary"]) for rule in rules()]
    asked += [(target["expr"], target["legendFormat"]) for target in targets()]
    assert len(asked) > 30
    for expression, words in asked:
        names = NAME.findall(expression)
        assert names and set(names) <= set(exported), expression
        grouped = re.findall(r"by \(([^)]*)\)", expression)
        labels = set(grouped[0].replace(" ", "").split(",")) if grouped else exported[names[0]]
        assert labels <= exported[names[0]], expression
        assert set(LABEL.findall(words)) <= {*labels, "instance"}, (expression, words)


def test_every_figure_of_a_task_says_where_it_comes_from(scraped: str) -> None:
    """Job, task, subtask, attempt, TaskManager and host; of a TaskManager its id and host."""
    expected = {"job_id", "job_name", "task_id", "task_name", "subtask_index", "task_attempt_num", "tm_id", "host"}
    exported = labels_by_name(scraped)
    tasks = {name: labels for name, labels in exported.items() if name.startswith("snapline_taskmanager_job_task_")}
    assert len(tasks) >= 26
    ends = [f"checkpoint{name}" for name in ("AlignmentTime", "StartDelayNanos", "StateSize")]
    ends += [f"buffers_{name}" for name in ("inputQueueLength", "inPoolUsage", "outputQueueSize", "outputCredits")]
    assert {f"snapline_taskmanager_job_task_{end}" for end in ends} < set(tasks)
    assert {name: labels for name, labels in tasks.items() if labels != expected} == {}
    assert exported["snapline_taskmanager_slots"] == {"tm_id", "host"}
    assert 'host=""' not in scraped


@needs_promtool
def test_the_exposition_is_what_prometheus_wants(scraped: str) -> None:
    """`promtool check metrics` has nothing to say but about names, which are Flink's."""
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=scraped, capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "snapline_" in line and "should be written in" not in line]
    assert ours == []


@needs_promtool
def test_the_alerts_fire_on_what_they_are_for(tmp_path: Path) -> None:
    """By Prometheus' own test runner: figures of a night in, alerts out."""
    job = '{job_id="a1", job_name="orders", instance="c1"}'
    task = '{job_id="a1", job_name="orders", task_name="map", subtask_index="0", tm_id="tm-1", instance="c1"}'
    bad = {
        f"snapline_jobmanager_job_lastCheckpointAge{job}": "0+60000x20",
        f"snapline_jobmanager_job_runningState{job}": "1x20",
        f"snapline_jobmanager_job_numberOfFailedCheckpoints_total{job}": "0+1x20",
        f"snapline_jobmanager_job_numRestarts_total{job}": "0+1x20",
        f"snapline_jobmanager_job_downtime{job}": "0+60000x20",
        f"snapline_jobmanager_job_failedState{job}": "1x20",
        f"snapline_taskmanager_job_task_backPressuredTimeMsPerSecond{task}": "900x20",
        f"snapline_taskmanager_job_task_watermarkLag{task}": "900000x20",
        f"snapline_taskmanager_job_task_currentStepDuration{task}": "0+60000x20",
        'snapline_taskmanager_processMemoryGrowth{tm_id="tm-1", host="h", instance="c1"}': "99000000x20",
        'snapline_jobmanager_isLeader{instance="c1"}': "0x20",
        'snapline_jobmanager_taskSlotsRequired{instance="c1"}': "4x20",
        'snapline_jobmanager_taskSlotsTotal{instance="c1"}': "2x20",
        'snapline_jobmanager_lostTaskManagers_total{instance="c1"}': "0+1x20",
        'snapline_jobmanager_rejectedRegistrations_total{instance="c1"}': "0+1x20",
    }
    good = {name: "1x20" if "isLeader" in name or "runningState" in name else "0x20" for name in bad}
    alerts = [rule["alert"] for rule in rules()]

    def case(series: dict[str, str], *, fires: bool) -> dict[str, Any]:
        expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alerts)] if fires else []
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{"expr": expression, "eval_time": "15m", "exp_samples": samples}],
        }

    tests = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m"}
    file = tmp_path / "night.yaml"
    file.write_text(yaml.safe_dump({**tests, "tests": [case(bad, fires=True), case(good, fires=False)]}))
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
