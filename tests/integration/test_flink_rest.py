"""Flink's REST API on the page's server: every path against its description, and a client written for Flink."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from snapline.coordinator.web.flink_rest import OPENAPI
from snapline.coordinator.web.page_server import PageServer
from snapline.coordinator.web.request_bodies import MAX_BODY_BYTES
from snapline.dataflow.config import Configuration
from snapline.dataflow.wire.messages import JobStatus
from tests.integration.savepoint_job import build
from tests.services.cluster import LocalCluster, wait_until

DESCRIPTION = json.loads(OPENAPI.read_text())
NOBODY = "0" * 32


def strict(schema: Any) -> Any:
    """The schema, in which an object has the fields that are named and no others."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if "properties" in found and isinstance(found.get("required"), list):
        found["additionalProperties"] = False
    return found


SCHEMAS = {"components": {"schemas": strict(DESCRIPTION["components"]["schemas"])}}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cluster is up before anything counts what a test leaves behind."""
    metafunc.fixturenames.insert(0, "running")


class Running:
    """A cluster of processes with a job that goes on until its gate opens, and the page of it."""

    def __init__(self, directory: Path, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._directory = directory
        self.page = PageServer(Configuration({"s3.secret-key": "hush"}), lambda: cluster.address)
        self.url = self.page.start("127.0.0.1", 0)
        self.job_id = self.submit("sums")

    def submit(self, name: str, **settings: Any) -> str:
        """One more job of two subtasks that ends when it is told to; it runs when this returns."""
        arguments = ["--output", str(self._directory / name), "--rows", "4000", "--rate", "2000"]
        environment = build(self.cluster.environment(**settings), [*arguments, "--gate", str(self._directory / "gate")])
        job_id = self.cluster.submit(environment, name)
        self.cluster.wait_for(job_id, JobStatus.RUNNING)
        self.cluster.wait_for_checkpoints(job_id, 1)
        return job_id

    def ask(self, path: str, method: str = "GET", body: object = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.url}{path}", data, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def get(self, path: str) -> Any:
        """What a path below `/v1` answers."""
        status, answer = self.ask(f"/v1{path}")
        assert status == 200, (path, answer)
        return answer

    def end_of(self, job_id: str, trigger_id: str) -> Any:
        """What became of a savepoint, once that is known."""
        found: list[Any] = []

        def look() -> bool:
            found[:] = [self.get(f"/jobs/{job_id}/savepoints/{trigger_id}")]
            return bool(found[0]["status"]["id"] == "COMPLETED")

        wait_until(look, "the savepoint")
        return found[0]["operation"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all tests; what changes something has a job of its own."""
    directory = tmp_path_factory.mktemp("rest")
    with LocalCluster(directory, slots=(2, 2)) as cluster:
        running = Running(directory, cluster)
        yield running
        running.page.stop()


def check(answer: Any, schema: Any) -> None:
    """Raises ValidationError unless the answer has exactly the fields that are described."""
    jsonschema.Draft202012Validator({**schema, **SCHEMAS}).validate(answer)


def test_every_path_answers_as_it_is_described(running: Running) -> None:
    """With a job that runs: no field is missing, none is there that the description does not name."""
    job = running.get(f"/jobs/{running.job_id}")
    newest = running.get(f"/jobs/{running.job_id}/checkpoints")["latest"]["completed"]["id"]
    (first, *_) = running.get("/taskmanagers")["taskmanagers"]
    ids = {
        "jobid": running.job_id,
        "vertexid": job["vertices"][0]["id"],
        "checkpointid": str(newest),
        "subtaskindex": "1",
        "attempt": "0",
        "taskmanagerid": first["id"],
    }
    asked = 0
    for path, methods in DESCRIPTION["paths"].items():
        if "get" not in methods or "{triggerid}" in path:
            continue
        filled = re.sub(r"{(\w+)}", lambda found: ids[found[1]], path).removeprefix("/v1")
        content = methods["get"]["responses"]["200"]["content"]["application/json"]
        check(running.get(filled), content["schema"])
        parameters = {each["name"] for each in methods["get"].get("parameters", ()) if each["in"] == "query"}
        if "get" in parameters:
            names = [each["id"] for each in running.get(filled)]
            values = running.get(f"{filled}?get={','.join(names)}")
            assert [each["id"] for each in values] == names
            assert all("value" in each or {"min", "max", "avg", "sum", "skew"} <= set(each) for each in values), filled
            check(values, content["schema"])
        asked += 1
    assert asked == sum("get" in methods for methods in DESCRIPTION["paths"].values()) - 1
    assert running.get("/openapi.json") == DESCRIPTION
    assert running.ask("/jobs") == running.ask("/v1/jobs"), "Flink answers without the version as well"


def test_what_runs_is_what_is_said(running: Running) -> None:
    """Statuses, counts, the graph, settings and secrets."""
    overview = running.get("/overview")
    assert (overview["taskmanagers"], overview["slots-total"]) == (2, 4)
    listed = {job["jid"]: job for job in running.get("/jobs/overview")["jobs"]}[running.job_id]
    assert (listed["name"], listed["state"], listed["end-time"]) == ("sums", "RUNNING", -1)
    job = running.get(f"/jobs/{running.job_id}")
    assert listed["tasks"]["running"] == listed["tasks"]["total"] == sum(v["parallelism"] for v in job["vertices"])
    assert {vertex["status"] for vertex in job["vertices"]} == {"RUNNING"}
    sources = [node for node in job["plan"]["nodes"] if "inputs" not in node]
    assert len(sources) == 1
    hashed = [each["ship_strategy"] for node in job["plan"]["nodes"] for each in node.get("inputs", ())]
    assert "HASH" in hashed
    assert running.get(f"/jobs/{running.job_id}/checkpoints/config")["interval"] == 200
    assert running.get(f"/jobs/{running.job_id}/exceptions")["exceptionHistory"] == {"entries": [], "truncated": False}
    assert running.get("/jobmanager/config") == [{"key": "s3.secret-key", "value": "*********(redacted)"}]
    vertex = f"/jobs/{running.job_id}/vertices/{sources[0]['id']}"
    one = running.get(f"{vertex}/subtasks/metrics?get=numRecordsOut&agg=sum&subtasks=0")
    assert set(one[0]) == {"id", "sum"}
    queues = running.get(f"{vertex}/subtasks/metrics?get=buffers.outPoolUsage,buffers.outputQueueLength&agg=max")
    assert [each["id"] for each in queues] == ["buffers.outPoolUsage", "buffers.outputQueueLength"]


def test_a_client_that_was_written_for_flink_works(running: Running) -> None:
    """The one on the package index, unchanged: everything it can ask of jobs, TaskManagers and the cluster."""
    package = pytest.importorskip(
        "flink_rest_client", reason="NO CLIENT OF FLINK: pip install flink-rest-client==1.0.8, of the extra dev"
    )
    port = int(running.url.rpartition(":")[2])
    client = package.FlinkRestClient.get(host="127.0.0.1", port=port)
    assert client.overview()["slots-total"] == 4
    assert client.config()["features"]["web-submit"] is False
    assert client.jobmanager.config() == {"s3.secret-key": "*********(redacted)"}
    assert client.jobmanager.metrics()["taskSlotsTotal"] == "4"
    jobs = client.jobs
    job_id = running.submit("asked")
    assert job_id in jobs.job_ids()
    assert jobs.get(job_id)["state"] == "RUNNING"
    assert jobs.get_config(job_id)["name"] == "asked"
    assert jobs.get_exceptions(job_id)["root-exception"] is None
    assert jobs.get_metrics(job_id)["numRestarts"] == "0"
    assert jobs.metrics()["numRestarts"]["sum"] == 0
    assert jobs.get_plan(job_id)["jid"] == job_id
    (number, *_) = jobs.get_checkpoint_ids(job_id)
    assert jobs.get_checkpoint_details(job_id, number)["id"] == number
    (vertex_id, *_) = jobs.get_vertex_ids(job_id)
    vertex = jobs.get_vertex(job_id, vertex_id)
    assert vertex.details()["parallelism"] == 2
    assert vertex.backpressure()["status"] == "ok"
    assert vertex.subtasks.subtask_ids() == [0, 1]
    assert set(vertex.subtasks.metrics()["numRecordsOut"]) == {"min", "max", "avg", "sum"}
    assert vertex.subtasks.get(1)["attempt"] == 0
    assert vertex.subtasks.get_attempt(1)["taskmanager-id"] and vertex.subtasks.get_attempt(1, 0)["attempt"] == 0
    assert vertex.subtasks.get_attempt_accumulators(1, 0)["user-accumulators"] == []
    (first, *_) = client.taskmanagers.taskmanager_ids()
    assert client.taskmanagers.get(first)["slotsNumber"] == 2
    assert client.taskmanagers.get(first)["timeSinceLastHeartbeat"] > 0, "when that was, in Flink as well"
    assert client.taskmanagers.get_metrics(first)["slots"] == "2"
    assert client.taskmanagers.get_thread_dump(first)
    directory = str(running.cluster.savepoints)
    taken = jobs.create_savepoint(job_id, directory)
    assert running.end_of(job_id, taken.trigger_id)["location"].startswith(directory)
    assert jobs.terminate(job_id)
    running.cluster.wait_for(job_id, JobStatus.CANCELED)


def test_a_savepoint_without_a_directory_is_refused_at_once(running: Running) -> None:
    """Flink's code; the request was taken, and only whoever asked what had become of it heard of the directory."""
    job = f"/v1/jobs/{running.submit('nowhere', execution__checkpointing__savepoint_dir='')}"
    for path in (f"{job}/savepoints", f"{job}/stop"):
        status, answer = running.ask(path, "POST", {})
        assert status == 400 and "execution.checkpointing.savepoint-dir" in answer["errors"][0]
    assert running.ask(f"{job}?mode=cancel", "PATCH")[0] == 202


def test_savepoint_and_stop_answer_with_a_trigger_that_is_asked_for(running: Running) -> None:
    """The caller may choose the id of a savepoint; what is repeated under it joins the first request."""
    job_id = running.submit("stopped")
    trigger = "ab" * 16
    body = {"target-directory": None, "cancel-job": False, "triggerId": trigger}
    for _ in range(2):
        assert running.ask(f"/v1/jobs/{job_id}/savepoints", "POST", body) == (202, {"request-id": trigger})
    location = running.end_of(job_id, trigger)["location"]
    assert Path(location).exists()
    history = running.get(f"/jobs/{job_id}/checkpoints")
    assert history["latest"]["savepoint"]["external_path"] == location
    assert [each["checkpoint_type"] for each in history["history"]].count("SAVEPOINT") == 1
    nowhere = {"target-directory": "/proc/nowhere", "triggerId": "cd" * 16}
    assert running.ask(f"/v1/jobs/{job_id}/savepoints", "POST", nowhere)[0] == 202
    assert "failure-cause" in running.end_of(job_id, "cd" * 16)
    status, answer = running.ask(f"/v1/jobs/{job_id}/stop", "POST", {"drain": False})
    assert status == 202
    assert running.end_of(job_id, answer["request-id"])["location"]
    running.cluster.wait_for(job_id, JobStatus.FINISHED)
    assert running.get(f"/jobs/{job_id}/execution-result")["job-execution-result"]["application-status"] == "SUCCEEDED"
    assert running.ask(f"/v1/jobs/{job_id}/stop", "POST")[0] == 409
    assert running.ask(f"/v1/jobs/{job_id}?mode=cancel", "PATCH")[0] == 409


def test_errors_are_a_list_with_flinks_codes(running: Running) -> None:
    """One line each: unknown and unreadable ids, paths, bodies and parameters, and what another site's script sends."""
    job, vertex = f"/v1/jobs/{running.job_id}", running.get(f"/jobs/{running.job_id}")["vertices"][0]["id"]
    expected = {
        ("GET", "/v1/jobs/nobody"): 400,
        ("GET", f"/v1/jobs/{NOBODY}"): 404,
        ("GET", f"/v1/jobs/{NOBODY}/exceptions"): 404,
        ("PATCH", f"/v1/jobs/{NOBODY}?mode=cancel"): 404,
        ("POST", f"/v1/jobs/{NOBODY}/savepoints"): 404,
        ("GET", f"{job}/vertices/{NOBODY}"): 404,
        ("GET", f"{job}/checkpoints/details/1000000"): 404,
        ("GET", f"{job}/savepoints/{NOBODY}"): 404,
        ("GET", f"{job}/exceptions?maxExceptions=many"): 400,
        ("GET", f"{job}/vertices/{vertex}/subtasks/9"): 404,
        ("GET", f"{job}/vertices/{vertex}/subtasks/0/attempts/7"): 404,
        ("GET", f"{job}/vertices/{vertex}/subtasks/metrics?agg=most"): 400,
        ("GET", f"{job}/vertices/{vertex}/subtasks/metrics?subtasks=1-x"): 400,
        ("PATCH", f"{job}?mode=stop"): 308,
        ("PATCH", f"{job}?mode=pause"): 400,
        ("GET", "/v1/taskmanagers/nobody"): 404,
        ("GET", "/v1/jars"): 404,
        ("POST", "/v1/jars/upload"): 404,
    }
    for (method, path), code in expected.items():
        status, answer = running.ask(path, method)
        assert (status, [type(line) for line in answer["errors"]]) == (code, [str]), (path, answer)
        assert "\n" not in answer["errors"][0]
    for path in ("exceptions?maxExceptions=many", f"vertices/{vertex}/subtasks/x", "checkpoints/details/1_0"):
        assert re.match(
            "Bad request: [a-zA-Z]+ = '.*' has to be a whole number", running.ask(f"{job}/{path}")[1]["errors"][0]
        )
    savepoints = f"{job}/savepoints"
    for body, code in ((b"{", 400), (b"[]", 400), (b"[" * 9_000, 400), (b" " * (MAX_BODY_BYTES + 1), 413)):
        assert running.ask(savepoints, "POST", body)[0] == code, body[:20]
    assert running.ask(savepoints, "POST", {"target-directory": 7})[0] == 400
    for path, key in ((savepoints, "cancel-job"), (f"{job}/stop", "drain")):  # the text "false" ends no job
        refused = {"errors": [f"Bad request: {key} has to be true or false"]}
        assert running.ask(path, "POST", {key: "false"}) == (400, refused)
    assert running.ask(savepoints, "POST", {}, Origin="http://evil.example")[0] == 403
    assert running.ask("/v1/jobs", Host="evil.example")[0] == 403
    assert running.get(f"/jobs/{running.job_id}")["state"] == "RUNNING"


def test_what_the_page_takes_is_bounded_as_well(running: Running) -> None:
    """A body that is too large is refused without being read to its end."""
    path = f"/api/jobs/{running.job_id}/savepoint"
    status, answer = running.ask(path, "POST", b"{" + b" " * MAX_BODY_BYTES, X_Snapline="page")
    assert (status, answer) == (413, {"error": "the body of a request may have 65,536 bytes"})


def test_a_token_is_asked_for_by_every_path(running: Running) -> None:
    """As a bearer token, with an answer in Flink's form."""
    page = PageServer(Configuration({"security.auth.token": "s3cret"}), lambda: running.cluster.address)
    url = page.start("127.0.0.1", 0)
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/v1/overview", timeout=30)
        assert refused.value.code == 401
        assert "security.auth.token" in json.load(refused.value)["errors"][0]
        request = urllib.request.Request(f"{url}/v1/config", headers={"Authorization": "Bearer s3cret"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["features"]["web-cancel"] is True
    finally:
        page.stop()
