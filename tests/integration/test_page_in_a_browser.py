"""The page in a real browser: every view of a cluster that works, in the light, in the dark and on a phone, checked for
accessibility by axe, and with the keyboard alone.

The pictures of `docs/operations.md` are made here: `SNAPLINE_PICTURES=docs/images` says where they go.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import DiscardingSink
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.coordinator.web.page_server import PageServer
from snapline.dataflow.config import Configuration
from snapline.dataflow.wire.messages import JobStatus
from tests.services.cluster import LocalCluster, wait_until

ROOT = Path(__file__).resolve().parents[2]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
PACKAGES = ROOT / ".venv" / "browser" / "node_modules"


def _missing() -> str:
    if not BROWSER:
        return "NO BROWSER: chromium is not installed, so that no view is drawn"
    if shutil.which("node") is None or not (PACKAGES / "playwright-core").is_dir():
        return "NO PACKAGES FOR THE BROWSER: make node fetches them"
    return ""


pytestmark = [pytest.mark.skipif(bool(_missing()), reason=_missing()), pytest.mark.timeout(600)]


class Score(sl.KeyedProcessFunction):
    """Counts the rows of a key."""

    def open(self, context: sl.RuntimeContext) -> None:
        self.seen = context.get_state(sl.ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[sl.Row]:
        if self.seen.value() is None and row["key"] == 0:
            print("a row of prices:", row)
            print('{"ts":"now","msg":"a line that was cut')
        self.seen.update((self.seen.value() or 0) + 1)
        yield {"key": row["key"], "seen": self.seen.value()}


class Think(sl.KeyedProcessFunction):
    """Takes long for each row."""

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[sl.Row]:
        time.sleep(0.002)
        yield row


def refuse(row: sl.Row) -> sl.Row:
    """The bug of a user."""
    raise ValueError(f"the price of {row['key']} is missing")


def generated(environment: sl.StreamExecutionEnvironment, name: str) -> sl.DataStream:
    return environment.from_source(GeneratorSource(keys=1000, rows_per_second=2000, batch_rows=200), uid=name)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the browser has found: three jobs that run, one of which it cancels, and one that has failed."""
    directory = tmp_path_factory.mktemp("page")
    pictures = Path(os.environ.get("SNAPLINE_PICTURES") or directory / "pictures")
    pictures.mkdir(parents=True, exist_ok=True)
    with LocalCluster(directory, slots=(4, 4, 1)) as cluster:
        wait_until(lambda: sum(each.free_slots for each in cluster.client.list_task_managers()) == 9, "all slots")
        cluster.client.drain_task_manager("tm-3")
        running = cluster.environment(parallelism=2, interval="500 ms", web__checkpoints__history="1000")
        prices = generated(running, "prices").map(lambda row: row, uid="cleaned")
        prices.key_by("key").process(Score(), uid="scores").sink_to(DiscardingSink(), uid="scored")
        job_id = cluster.submit(running, "scores")
        other = cluster.environment(parallelism=1)
        generated(other, "clicks").sink_to(DiscardingSink(), uid="dropped")
        cancelled = cluster.submit(other, "clicks")
        skewed = cluster.environment(parallelism=2)
        visits = generated(skewed, "visits").map(
            lambda row: {**row, "key": 7 if row["key"] % 10 else row["key"]}, uid="guests"
        )
        visits.key_by("key").process(Think(), uid="thought").sink_to(DiscardingSink(), uid="forgotten")
        skewed_id = cluster.submit(skewed, "visits")
        broken = cluster.environment(parallelism=1, restart_strategy__type="none")
        generated(broken, "orders").map(refuse, uid="priced").sink_to(DiscardingSink(), uid="nowhere")
        failed = cluster.submit(broken, "orders")
        cluster.wait_for(failed, JobStatus.FAILED)
        cluster.wait_for_checkpoints(job_id, 3)
        cluster.client.trigger_savepoint(job_id)
        vertex = next(
            each.vertex_id for each in cluster.client.get_job(job_id).vertices if "scores" in each.operator_uids
        )
        page = PageServer(Configuration({}), lambda: cluster.address)
        views: list[tuple[str, ...]] = [
            ("jobs", "", "the price of"),
            ("taskmanagers", "taskmanagers", "draining"),
            ("job", f"job/{job_id}", "Last hour"),
            ("day", f"job/{job_id}", "Last hour", "24 hours", "Last 24 hours"),
            ("skew", f"job/{skewed_id}", "are skewed", "Which keys lead?", "key=7 (key group "),
            (
                "vertex",
                f"job/{job_id}/vertex/{vertex}",
                "the hottest subtask first",
                "Which keys lead?",
                "Of the rows at",
            ),
            ("checkpoints", f"job/{job_id}/checkpoints", "completed"),
            ("checkpoint", f"job/{job_id}/checkpoints/2", "who was last first"),
            ("state", f"job/{job_id}/state", "By key group"),
            ("exceptions", f"job/{failed}/exceptions", "ValueError"),
            ("stacks", f"job/{job_id}/stacks", "tm-"),
            ("logs", f"job/{job_id}/logs", "a row of prices"),
            ("log", "taskmanager/tm-2", "TaskManager starts"),
            ("configuration", f"job/{job_id}/configuration", "the program"),
            ("cluster", "configuration", "the process that started this one"),
        ]
        plan = {
            "browser": BROWSER,
            "url": page.start("127.0.0.1", 0),
            "pictures": str(pictures),
            "paths": {str(directory): "/data", str(ROOT): "/opt/snapline", sys.base_prefix: "/usr"},
            "views": [dict(zip(("name", "route", "expected", "press", "then"), view, strict=False)) for view in views],
            "cancel": {"route": f"job/{cancelled}", "expected": "clicks"},
        }
        try:
            looked = subprocess.run(
                ["node", str(ROOT / "tests" / "browser" / "look.mjs")],
                env={**os.environ, "NODE_PATH": str(PACKAGES)},
                input=json.dumps(plan),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            yield json.loads(looked.stdout)
        finally:
            page.stop()


def test_every_view_is_drawn_without_an_error_and_from_here_alone(found: dict[str, Any]) -> None:
    """Fourteen views and the plots of a day, each in the light, in the dark and on a phone."""
    assert len(found["views"]) == 45
    assert [view for view in found["views"] if view["trouble"]] == []
    assert found["console"] == []
    assert len(found["requests"]) == 1, "the page asks its own server only"


def test_no_view_breaks_a_rule_of_accessibility(found: dict[str, Any]) -> None:
    """Axe's rules (WCAG 2 A and AA, and its best practices), with the colours of the light and of the dark."""
    broken = [f"{view['view']}, {view['look']}: {line}" for view in found["views"] for line in view["violations"]]
    assert broken == [], "\n".join(broken)
    assert found["question"] == []
    assert any(line.startswith("image-alt") for line in found["canary"]), "a picture without words is found"


def test_no_view_has_to_be_moved_sideways_on_a_phone(found: dict[str, Any]) -> None:
    """Wide tables move within themselves."""
    assert [(view["view"], view["look"]) for view in found["views"] if view["sideways"] > 0] == []


def test_a_job_is_cancelled_with_the_keyboard_alone_after_a_question(found: dict[str, Any]) -> None:
    """Escape is no; the first stop of the tabulator leads to the content."""
    keyboard = found["keyboard"]
    assert keyboard["first"] == "Skip to the content"
    assert (keyboard["after_no"], keyboard["after_yes"]) == ("RUNNING", "CANCELED")


def test_whoever_presses_a_button_second_reads_what_has_become_of_it(found: dict[str, Any]) -> None:
    """The line stays while the view goes on; a server that is gone is one line as well, until it is back."""
    assert (found["second"].startswith("cancel was not done: "), "CANCELED" in found["second"]) == (True, True)
    assert found["gone"] == "The server of this page does not answer; the page goes on when it does."
