"""The page of a cluster: its data; `test_page_in_a_browser` looks at its views."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from snapline.client import ClusterClient, RequestRefused
from snapline.coordinator.cluster_entrypoint import ClusterEntrypoint
from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.coordinator.rpc.coordinator_stub import CoordinatorStub
from snapline.coordinator.web import page_app
from snapline.coordinator.web.page_app import PAGE_HEADERS
from snapline.coordinator.web.page_server import PageServer
from snapline.dataflow.config import OPTIONS, Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.protos import client_pb2 as pb
from snapline.runtime.logs import REDACTED, silent_logger
from snapline.runtime.rpc.grpc_channels import OLDER_COORDINATOR
from snapline.runtime.rpc.security import Security
from snapline.runtime.settings import Setting, resolve
from tests.integration.test_cluster_entrypoint import waiting_job
from tests.services.cluster import wait_until

CONFIGURATION, ORIGINS = {"parallelism.default": "3"}, {"parallelism.default": "the program"}


class Served:
    """A coordinator within this process, a job that waits for slots, and the page of both."""

    def __init__(self, token: str = "", **settings: str) -> None:
        settings |= {"security.auth.token": token} if token else {}
        configuration = resolve({key: Setting(value, "--config of a test") for key, value in settings.items()})
        config = CoordinatorConfig("127.0.0.1:0", configuration)
        self.entrypoint = ClusterEntrypoint(config, silent_logger(), on_fatal=lambda: None)
        self.address = self.entrypoint.start()
        self.page = PageServer(configuration, lambda: self.address)
        self.url = self.page.start("127.0.0.1", 0)
        with ClusterClient(self.address, Security(token)) as client:
            self.job_id = client.submit(
                replace(waiting_job(), configuration=CONFIGURATION, configuration_origins=ORIGINS)
            )
            wait_until(
                lambda: bool(client.get_job(self.job_id).vertices), "the job, which was accepted, to have its JobMaster"
            )

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, dict]:
        """Status and JSON of an answer."""
        data = None if body is None else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.url}/api/{path}", data, given)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stop(self) -> None:
        """Stop both."""
        self.page.stop()
        self.entrypoint.stop()


@pytest.fixture
def served():
    running = Served()
    yield running
    running.stop()


def test_the_data_of_every_view_is_there(served):
    """As the page asks for it, with zeros and numbers."""
    assert served.ask("overview")[1]["leader"] == served.address
    (job,) = served.ask("jobs")[1]["jobs"]
    assert (job["job_id"], job["status"], job["restarts"]) == (served.job_id, "JOB_STATUS_CREATED", 0)
    details = served.ask(f"jobs/{served.job_id}")[1]
    assert [len(vertex["subtasks"]) for vertex in details["vertices"]] == [3]
    assert served.ask(f"jobs/{served.job_id}/checkpoints")[1]["counts"]["triggered"] == 0
    assert "waiting for slots" in served.ask(f"jobs/{served.job_id}/why")[1]["summary"]
    assert served.ask(f"jobs/{served.job_id}/stacks")[1] == {"dumps": [], "silent": []}
    assert set(served.ask(f"jobs/{served.job_id}/figures")[1]) >= {"time", "rows_in", "busy"}
    assert served.ask("taskmanagers")[1] == {"task_managers": [], "lost": []}


def test_the_files_of_the_page_come_from_here_alone(served):
    """It works without internet: nothing in it names another server."""
    with urllib.request.urlopen(served.url, timeout=30) as answer:
        page, headers = answer.read().decode(), answer.headers
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    for name in ("page.js", "page.css", "vendor/uPlot.esm.js", "vendor/dagre.esm.js", "vendor/uPlot.LICENSE"):
        with urllib.request.urlopen(f"{served.url}/static/{name}", timeout=30) as answer:
            assert answer.read()
    assert "https://" not in page and "/static/page.js" in page


def test_what_cannot_be_answered_is_one_line(served):
    """Unknown jobs and checkpoints, senseless numbers, a coordinator that refuses or is away."""
    assert served.ask("jobs/nobody") == (
        404,
        {"error": "there is no job 'nobody' here; `snapline list` shows all"},
    )
    assert served.ask(f"jobs/{served.job_id}/checkpoints/7")[0] == 404
    assert served.ask(f"jobs/{served.job_id}/checkpoints/7/state")[0] == 404
    wrong: list[object] = [None, [1], {}, "2", 2.7, True, float("inf")]
    for parallelism in wrong:
        assert served.ask(f"jobs/{served.job_id}/rescale", {"parallelism": parallelism}, X_Snapline="page") == (
            400,
            {"error": "the request makes no sense: parallelism has to be a whole number"},
        )
    assert served.ask(f"jobs/{served.job_id}/rescale", {}, X_Snapline="page")[0] == 400
    assert served.ask(f"jobs/{served.job_id}/stop", {"trigger_id": {}}, X_Snapline="page")[0] == 400
    status, answer = served.ask(f"jobs/{served.job_id}/rescale", {"parallelism": 2}, X_Snapline="page")
    assert (status, answer["error"]) == (409, "only a running job can be rescaled; it is CREATED")
    served.entrypoint.stop()
    status, answer = served.ask("jobs")
    assert (status, answer["error"].partition(" at ")[0]) == (503, "no coordinator answers")


def test_a_button_cancels_once_however_often_it_is_pressed(served):
    """Two people who press the same button: the second one is told what the job is."""
    path = f"jobs/{served.job_id}/cancel"
    assert served.ask(path, {}, X_Snapline="page") == (200, {})
    with ClusterClient(served.address, Security()) as client:
        assert list(client.watch_job(served.job_id))
    status, answer = served.ask(path, {}, X_Snapline="page")
    assert (status, "CANCELED" in answer["error"]) == (400, True)


def test_a_page_that_is_open_goes_on_with_the_next_leader(tmp_path, monkeypatch):
    """Its views ask all at once: while nobody leads, and while the leader that was asked is gone, each gets one line;
    then the next leader's answers, and the plots have points of both. A call on the lost connection fails no other."""
    monkeypatch.setattr(page_app, "PERIOD_SECONDS", 0.05)
    settings = {"high-availability.type": "embedded", "high-availability.storageDir": str(tmp_path)}
    served = Served(**settings)
    views = ["overview", "jobs", f"jobs/{served.job_id}", f"jobs/{served.job_id}/checkpoints", "taskmanagers"] * 4
    figures = f"jobs/{served.job_id}/figures"
    try:
        with ThreadPoolExecutor(len(views)) as tab:
            assert {status for status, _ in tab.map(served.ask, views)} == {200}
            wait_until(lambda: bool(served.ask(figures)[1]["time"]), "a point of the plots")
            served.entrypoint.stop()
            lines = {(status, said.get("error", "")) for status, said in tab.map(served.ask, views * 5)}
            gone = f"no coordinator answers at {served.address}; the page goes on when one does"
            assert lines == {(503, gone)}
            served.address = "127.0.0.1:1"  # what a leader was replaced by that does not lead any more
            tab.map(served.ask, views)

            config = CoordinatorConfig("127.0.0.1:0", Configuration(settings))
            served.entrypoint = ClusterEntrypoint(config, silent_logger(), on_fatal=lambda: None)
            started = tab.submit(served.entrypoint.start)
            meanwhile = {(status, "\n" in said.get("error", "")) for status, said in tab.map(served.ask, views * 5)}
            assert meanwhile == {(503, False)}
            served.address = started.result()
            wait_until(lambda: served.ask(f"jobs/{served.job_id}")[0] == 200, "the job under the next leader")
            assert served.ask("overview")[1]["leader"] == served.address
            assert {status for status, _ in tab.map(served.ask, views)} == {200}
            assert served.ask(f"jobs/{served.job_id}")[1]["overview"]["name"] == "waits"
            points = len(served.ask(figures)[1]["time"])
            wait_until(lambda: len(served.ask(figures)[1]["time"]) > points, "a point under the next leader")
    finally:
        served.stop()


def test_scripts_of_other_sites_are_refused(served):
    """Another origin, another name for this host, and a change that no page of ours has sent."""
    assert served.ask("jobs", Origin="http://evil.example")[0] == 403
    assert served.ask("jobs", Host="evil.example")[0] == 403
    assert served.ask(f"jobs/{served.job_id}/cancel", {})[0] == 403
    assert served.ask("jobs", Origin=served.url)[0] == 200
    assert served.ask("jobs", Sec_Fetch_Site="same-origin", Sec_Fetch_Dest="empty")[0] == 200
    # An image of another site is asked for without an Origin, and would have tasks sampled; a link may be followed.
    assert served.ask("jobs", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="image")[0] == 403
    assert served.ask("jobs", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")[0] == 200


def test_every_answer_has_the_headers_of_the_page(served):
    """Refusals, the REST API, files, what is not there: no other site frames one, and none is taken for a script."""
    for path in ("/", "/api/jobs", "/api/jobs/none", "/v1/jobs", "/v1/nothing", "/static/page.css", "/nothing"):
        connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Origin": "http://evil.example"} if path == "/api/jobs" else {})
            answer = connection.getresponse()
        assert {name: answer.headers[name] for name in PAGE_HEADERS} == PAGE_HEADERS, (path, answer.status)


def test_a_token_is_asked_for_when_the_cluster_has_one():
    """By every request for data; the files of the page hold no secret."""
    served = Served("s3cret")
    try:
        assert served.ask("jobs")[0] == 401
        assert served.ask("jobs", Authorization="Bearer other")[0] == 401
        assert served.ask("jobs", Authorization="Bearer s3cret")[0] == 200
    finally:
        served.stop()


def test_settings_of_job_and_coordinator_have_origins_and_no_secret():
    """All that there are, those that nobody has set as well; a secret is masked, and who did not say more is the
    coordinator."""
    served = Served("s3cret", **{"web.checkpoints.history": "20"})
    try:
        settings = {
            each["key"]: each for each in served.ask("configuration", Authorization="Bearer s3cret")[1]["settings"]
        }
        job = served.ask(f"jobs/{served.job_id}", Authorization="Bearer s3cret")[1]
    finally:
        served.stop()
    assert set(settings) == set(OPTIONS)
    shown = {key: (each["value"], each["origin"]) for key, each in settings.items()}
    assert shown["security.auth.token"] == (REDACTED, "--config of a test")
    assert shown["web.checkpoints.history"] == ("20", "--config of a test")
    assert shown["parallelism.default"] == (OPTIONS["parallelism.default"].default, "default")
    assert settings["parallelism.default"]["description"] == OPTIONS["parallelism.default"].description
    assert (job["configuration"], job["configuration_origins"]) == (CONFIGURATION, ORIGINS)


def test_a_coordinator_that_is_older_than_the_page_or_a_client_is_one_line():
    """What it does not know is said to be missing, and what to do."""
    older = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{older.add_insecure_port('127.0.0.1:0')}"
    older.start()
    page = PageServer(Configuration({}), lambda: address)
    url = page.start("127.0.0.1", 0)
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/api/configuration", timeout=30)
        assert (refused.value.code, json.load(refused.value)) == (501, {"error": OLDER_COORDINATOR})
        with ClusterClient(address, Security()) as client, pytest.raises(RequestRefused, match="older Snapline"):
            client.cluster_configuration()
    finally:
        page.stop()
        older.stop(None).wait()


@pytest.mark.parametrize("rows", ["lists", "nonsense"])
def test_keys_that_cannot_be_counted_are_one_line(monkeypatch, rows):
    """Arrow groups by no lists; and what a TaskManager sends may be damaged. Neither is the fault of who has asked."""
    batch = pa.record_batch({"user": pa.array([[1], [2]])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    tapped = pb.TappedRows(rows=sink.getvalue().to_pybytes() if rows == "lists" else b"nonsense")
    details = pb.JobDetails(vertices=[pb.VertexDetails(vertex_id="sums", operator_uids=["sums"])])
    details.edges.add(source="rows", target="sums", key_columns=["user"])
    answers = {"GetJob": details, "TapOperator": pb.TapOperatorResponse(parts=[tapped])}

    async def call(_stub, method, *_arguments):
        return answers.get(method, pb.ListJobsResponse())

    monkeypatch.setattr(CoordinatorStub, "call", call)
    page = PageServer(Configuration({}), lambda: "")
    url = page.start("127.0.0.1", 0)
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/api/jobs/a/vertices/sums/keys", timeout=30)
        status, said = refused.value.code, json.load(refused.value)["error"]
    finally:
        page.stop()
    assert (status, said.startswith("the keys of the rows that were looked at cannot be counted: ")) == (502, True)
    assert "\n" not in said


def test_a_taken_port_is_one_clear_line(served):
    """With the setting that chooses another one."""
    port = int(served.url.rpartition(":")[2])
    second = PageServer(Configuration({}), lambda: "")
    with pytest.raises(
        SnaplineError, match=f"cannot serve the page on 127.0.0.1:{port}: address already in use; choose"
    ):
        second.start("127.0.0.1", port)


def test_the_coordinator_is_asked_seldom_while_nobody_looks(monkeypatch):
    """One look at the start, for the plots; the next one comes when somebody asks for data, or after a long time."""
    looks = []

    def nobody_leads():
        looks.append(threading.current_thread().name)
        raise SnaplineError("nobody leads")

    monkeypatch.setattr(page_app, "PERIOD_SECONDS", 0.0)
    page = PageServer(Configuration({}), nobody_leads)
    url = page.start("127.0.0.1", 0)
    try:
        for _ in range(50):
            with urllib.request.urlopen(f"{url}/static/page.css", timeout=30) as answer:
                assert answer.read()
        assert len(looks) <= 1
        for asked in range(1, 4):
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(f"{url}/api/overview", timeout=30)
            assert len(looks) <= 1 + 3 * asked
    finally:
        page.stop()


def test_no_file_of_the_page_names_another_server():
    """Vendored libraries and their licences are in the package."""
    static = Path(__file__).parents[2] / "coordinator" / "web" / "static"
    for path in static.glob("*.*"):
        assert "http" not in path.read_text().replace("http://www.w3.org/2000/svg", "").replace("https?:", ""), path
