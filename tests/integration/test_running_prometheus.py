"""The alert rules of `deploy/` in a Prometheus that runs, over a coordinator whose jobs go wrong."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from snapline import GeneratorSource, SinkFunction, StreamExecutionEnvironment, WatermarkStrategy
from snapline.client import ClusterClient
from snapline.connectors import DiscardingSink
from tests.integration.test_alerts import ALERTS, observed
from tests.services.cluster import wait_until

HOUR_MS = 3_600_000
PROMETHEUS = shutil.which("prometheus")
FIRING = {
    "SnaplineNoCheckpoint",
    "SnaplineJobRestarts",
    "SnaplineWatermarkLag",
    "SnaplineBackPressure",
    "SnaplineSlotsMissing",
}
"""What a night shift wants to hear of; promtool tests the others, with series that were made up."""


class Slow(SinkFunction):
    """Takes much longer for a row than the next one needs to come."""

    def invoke(self, value: Any) -> None:
        time.sleep(0.01)


def fail(_row: dict[str, Any]) -> dict[str, Any]:
    """The bug of a user."""
    raise ValueError("the price is missing")


def impatient(rules: str) -> str:
    """The rules with the same conditions, but nobody waits: minutes are a second, and five minutes two."""
    hurried = re.sub(r"for: \d+m", "for: 1s", rules).replace("> 300000", "> 2000")
    assert hurried.count("for: 1s") == rules.count("for: ") and hurried.count("> 2000") == 1
    return hurried


@contextmanager
def prometheus(directory: Path, target: int) -> Iterator[str]:
    """Prometheus on loopback, which reads one port twice a second; the address of its API."""
    (directory / "alerts.yaml").write_text(impatient(ALERTS.read_text()))
    (directory / "prometheus.yaml").write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"
        "rule_files: [alerts.yaml]\n"
        f"scrape_configs: [{{job_name: snapline, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [str(PROMETHEUS), f"--config.file={directory}/prometheus.yaml", f"--web.listen-address={address}"]
    command += [f"--storage.tsdb.path={directory}/data", "--log.level=error"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield f"http://{address}/api/v1"
    finally:
        process.terminate()
        process.wait(30)


def jobs(settings: dict[str, str]) -> Iterator[tuple[str, StreamExecutionEnvironment]]:
    """One is behind, back-pressured and completes no checkpoint; one restarts; and one has no slots."""
    for name, parallelism in (("behind", 1), ("restarts", 1), ("waits", 8)):
        values = {**settings, "parallelism.default": parallelism, "execution.checkpointing.interval": "1 h"}
        values |= {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": 10_000}
        values |= {"restart-strategy.fixed-delay.delay": "500 ms", "restart-strategy.same-row.max-failures": 0}
        environment = StreamExecutionEnvironment.get_execution_environment(values)
        source = GeneratorSource(
            keys=4, rows_per_second=500, batch_rows=20, event_time_column="at", event_interval_us=2_000
        )
        late = WatermarkStrategy.for_bounded_out_of_orderness("at", HOUR_MS if name == "behind" else 0)
        rows = environment.from_source(source, late, uid="rows")
        if name == "behind":
            rows.rebalance().add_sink(Slow(), uid="slow")
        else:
            rows.map(fail, uid="priced").sink_to(DiscardingSink(), uid="nowhere")
        yield name, environment


def ran(client: ClusterClient, job_id: str) -> bool:
    """Whether the job has had its slots."""
    return "RUNNING" in client.get_job(job_id).status_timestamps_ms


@pytest.mark.rare
@pytest.mark.skipif(PROMETHEUS is None, reason="NO PROMETHEUS: apt-get install prometheus")
def test_alerts_fire_in_a_prometheus_that_runs(tmp_path: Path) -> None:
    """Each names its job, and the words are filled in."""
    settings = {"execution.checkpointing.dir": str(tmp_path / "checkpoints"), "heartbeat.interval": "200 ms"}
    firing: dict[str, dict[str, Any]] = {}
    with observed(settings, slots=2) as (client, port), prometheus(tmp_path, port) as api:
        ids: dict[str, str] = {}
        for name, each in jobs(settings):
            ids[name] = job_id = client.submit(each.translate(name).job_graph)
            if name != "waits":  # which comes last, so that it takes no slot of the others
                wait_until(lambda job=job_id: ran(client, job), f"{name} to run")  # type: ignore[misc]

        def all_fire() -> bool:
            try:
                with urllib.request.urlopen(f"{api}/alerts", timeout=30) as answer:
                    alerts = json.load(answer)["data"]["alerts"]
            except urllib.error.URLError:  # it starts
                return False
            firing.clear()
            firing.update({each["labels"]["alertname"]: each for each in alerts if each["state"] == "firing"})
            return set(firing) >= FIRING

        wait_until(all_fire, "the alerts", progress=lambda: sorted(firing))
    summaries = {name: each["annotations"]["summary"] for name, each in firing.items()}
    assert f"snapline why {ids['behind']}" in summaries["SnaplineNoCheckpoint"]
    assert summaries["SnaplineJobRestarts"] == f"restarts restarts over and over: snapline why {ids['restarts']}"
    assert re.match(r"Event time of behind is \d{6,} ms behind", summaries["SnaplineWatermarkLag"])
    assert "GeneratorSource of behind waits for what comes behind it" in summaries["SnaplineBackPressure"]
    assert re.match(r"Jobs need \d+ slots", summaries["SnaplineSlotsMissing"])
    assert set(firing) == FIRING
