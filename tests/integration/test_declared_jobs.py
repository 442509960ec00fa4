"""Declared jobs on a real cluster that takes no pickles: from Node, through a kill, and from the command."""

from __future__ import annotations

import json
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from google.protobuf.json_format import ParseDict

import snapline as sl
from examples.external_rows import KEYS as EXTERNAL_KEYS
from examples.external_rows import NUMBERS, TOTALS, Files, Numbers, Totals
from snapline.cli import cli
from snapline.client import JobFailed, RequestRefused
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.external import participate
from snapline.protos.declared_pb2 import DeclaredJob
from tests.services.cluster import LocalCluster
from tests.services.node import NODE_IS_MISSING, node_program

ROWS = 24_000
KEYS = 8


def numbered_rows(output, rows_per_second=8_000.0):
    """The declaration, as JSON: rows numbered by key, into files."""
    columns = [{"name": "key", "type": "int64"}, {"name": "value", "type": "int64"}]
    options = {
        "rows": {"intValue": ROWS},
        "keys": {"intValue": KEYS},
        "rows_per_second": {"doubleValue": rows_per_second},
    }
    function = {
        "method": "process",
        "name": "tests.integration.declared_function:Numbered",
        "arguments": {"first": {"intValue": 1}},
        "keyColumns": ["key"],
        "columns": [{"name": "key", "type": "int64"}, {"name": "number", "type": "int64"}],
    }
    return {
        "name": "numbered",
        "configuration": {
            "parallelism.default": "2",
            "execution.checkpointing.interval": "100 ms",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "20",
            "restart-strategy.fixed-delay.delay": "10 ms",
        },
        "operators": [
            {"uid": "rows", "source": {"connector": {"name": "GeneratorSource", "options": options}, "columns": columns}},
            {"uid": "numbered", "inputs": ["rows"], "function": function},
            {"uid": "out", "inputs": ["numbered"], "sink": {"name": "FileSink", "options": {"path": {"stringValue": str(output)}}}},
        ],
    }  # fmt: skip


def numbers_of(output):
    """What was written, by key."""
    table = ds.dataset(output, format="parquet").to_table().sort_by([("key", "ascending"), ("number", "ascending")])
    found: dict[int, list[int]] = {}
    for key, number in zip(table["key"].to_pylist(), table["number"].to_pylist(), strict=True):
        found.setdefault(key, []).append(number)
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    settings = {
        "security.pickled-jobs.allowed": "false",
        "security.declared-modules": "tests.integration.declared_function",
    }
    with LocalCluster(tmp_path_factory.mktemp("cluster"), (2, 2, 2), settings) as cluster:
        yield cluster


@pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
def test_node_submits_a_job_that_survives_a_kill(cluster, tmp_path):
    """No Python on the client's side, no pickle anywhere, and every row is numbered once."""
    declaration = tmp_path / "job.json"
    declaration.write_text(json.dumps(numbered_rows(tmp_path / "out")))
    command = node_program("submit_declared.js", "--coordinator", cluster.address, "--job", str(declaration))
    with subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as node:
        assert node.stdout is not None
        job_id = node.stdout.readline().strip()
        cluster.wait_for_checkpoints(job_id, 2)
        cluster.on("tm-1").kill()  # signal 9
        said = node.stdout.read()

    assert (0, "JOB_STATUS_FINISHED\n") == (node.returncode, said)
    found = numbers_of(tmp_path / "out")
    assert ROWS == sum(map(len, found.values()))
    assert {key: list(range(1, len(numbers) + 1)) for key, numbers in found.items()} == found


def test_the_command_submits_a_file_and_says_what_is_wrong_with_another(cluster, tmp_path):
    """`snapline submit` waits for the end; a declaration that cannot be is one line; a pickled job is refused."""
    at = ["-m", cluster.address]
    declaration = tmp_path / "job.json"
    declaration.write_text(json.dumps(numbered_rows(tmp_path / "out", rows_per_second=1e6)))
    done = CliRunner().invoke(cli, ["submit", *at, str(declaration)])
    wrong = numbered_rows(tmp_path / "out")
    wrong["operators"][1]["inputs"] = ["row"]
    declaration.write_text(json.dumps(wrong))
    refused = CliRunner().invoke(cli, ["submit", *at, str(declaration)])
    declaration.write_text('{"operatorz": []}')
    unread = CliRunner().invoke(cli, ["submit", *at, str(declaration)])

    assert 0 == done.exit_code, done.output
    assert ROWS == sum(map(len, numbers_of(tmp_path / "out").values()))
    assert (1, "declared operator 'numbered': its input 'row' does not stand before it") == (
        refused.exit_code,
        str(refused.exception),
    )
    assert str(unread.exception).startswith(f"{declaration} declares no job (protos/declared.proto, as JSON): ")

    env = cluster.environment()
    env.from_source(sl.GeneratorSource(rows=1), uid="rows").sink_to(DiscardingSink(), uid="out")
    with pytest.raises(RequestRefused) as raised:
        cluster.submit(env, "pickled")
    assert str(raised.value) == (
        "job 'pickled' is not run here: operator 'rows' is a pickle, and security.pickled-jobs.allowed is false; declare the job "
        "(SubmitDeclaredJob, `snapline submit`), or allow pickles in the coordinator's settings"
    )


def test_programs_outside_are_all_of_a_declared_job(cluster, tmp_path):
    """Source, operator by key and sink register for tasks that a file names, and no pickle goes anywhere."""

    def fields(schema):
        return [{"name": field.name, "type": str(field.type)} for field in schema]

    totals = {"task": "totals", "columns": fields(TOTALS), "keyColumns": ["key"]}
    declared = numbered_rows(tmp_path) | {
        "name": "declared programs",
        "operators": [
            {"uid": "numbers", "parallelism": 1, "external": {"task": "numbers", "columns": fields(NUMBERS)}},
            {"uid": "totals", "parallelism": 1, "inputs": ["numbers"], "external": totals},
            {"uid": "files", "parallelism": 1, "inputs": ["totals"], "external": {"task": "files"}},
        ],
    }
    declaration = tmp_path / "job.json"
    declaration.write_text(json.dumps(declared))
    tasks = {"numbers": Numbers(100, 0.0), "totals": Totals(), "files": Files(tmp_path / "out")}
    at = {"job": "declared programs", "coordinator": cluster.address, "retry_pause": 0.05, "give_up_after": 60}
    with ThreadPoolExecutor() as threads:
        said = [threads.submit(participate, task, task_name=name, **at) for name, task in tasks.items()]
        done = CliRunner().invoke(cli, ["submit", "-m", cluster.address, str(declaration)])
        assert 0 == done.exit_code, done.output
        assert all(each.result().endswith("is FINISHED") for each in said)
    rows = [json.loads(line) for file in (tmp_path / "out").glob("[!.]*") for line in file.read_text().splitlines()]
    assert sorted((row["key"], row["number"], row["total"]) for row in rows) == sorted(
        (key, number, total)
        for key in range(EXTERNAL_KEYS)
        for number, total in enumerate(accumulate(range(1, 101)), 1)
    )


def test_a_job_that_is_asked_for_twice_is_submitted_once(cluster, tmp_path):
    """A client whose answer was lost asks again with the id that it drew."""
    job = ParseDict({**numbered_rows(tmp_path / "out", 1e6), "jobId": "ab" * 16}, DeclaredJob())

    assert ["ab" * 16] * 2 == [cluster.client.submit_declared(job) for _ in range(2)]
    cluster.client.wait("ab" * 16)
    assert ROWS == sum(map(len, numbers_of(tmp_path / "out").values()))


def test_task_managers_go_by_their_own_settings(tmp_path):
    """Where the coordinator takes anything, a TaskManager that may not runs no pickle, and no function of a module."""
    with LocalCluster(tmp_path / "cluster", ()) as cluster:
        cluster.settings["security.pickled-jobs.allowed"] = "false"
        cluster.start_task_manager(4)
        env = cluster.environment()
        env.from_source(sl.GeneratorSource(rows=1), uid="rows").sink_to(DiscardingSink(), uid="out")
        pickled = cluster.submit(env, "pickled")
        told = numbered_rows(tmp_path / "out")
        told["operators"][0]["source"]["connector"] = {
            "name": "subprocess:getoutput",
            "options": {"cmd": {"stringValue": f"touch {tmp_path / 'mark'}"}},
        }
        named = cluster.client.submit_declared(ParseDict(told, DeclaredJob()))
        with pytest.raises(JobFailed, match="a pickle is not read here, because security"):
            cluster.client.wait(pickled)
        with pytest.raises(JobFailed, match="declared jobs may not name what is in module 'subprocess' here"):
            cluster.client.wait(named)

    assert not (tmp_path / "mark").exists()
