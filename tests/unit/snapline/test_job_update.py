"""Whatever goes wrong once the old job has stopped, one of both versions runs afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from snapline import job_update
from snapline.client import CoordinatorUnreachable, RequestRefused
from snapline.connectors.parquet.staged_rows import StagedRowsSource
from snapline.connectors.parquet.streamed_rows import StreamedRowsSource
from snapline.dataflow.config import CHECKPOINTING_RETENTION, Configuration
from snapline.dataflow.graph.operator_specs import SourceSpec
from snapline.dataflow.wire.messages import JobStatus
from snapline.dataflow.wire.statuses import encode_job_status
from snapline.job_update import UpdateFailed, update_job
from snapline.plan import NEW
from snapline.protos import checkpoint_pb2


class Version(str):
    """A graph, of which only the name and the settings matter."""

    __slots__ = ()
    configuration = Configuration()
    staged_directories: tuple[str, ...] = ()
    vertices: tuple[Any, ...] = ()


class Cluster:
    """A coordinator of which calls can be made to fail; jobs are their names."""

    def __init__(self) -> None:
        self.running = {"old": "the first version"}
        self.known = dict(self.running)
        self.finished: set[str] = set()
        self.completes = True
        self.refusal = self.refused = ""
        self.is_cancelled: Callable[[str], object] = lambda job_id: None
        """Called when a job is cancelled."""
        self.before: dict[str, list[BaseException]] = {}
        self.after: dict[str, list[BaseException]] = {}
        self.signals: dict[str, list[signal.Signals]] = {}
        """What comes to this process while it waits for a call."""

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if f"answer_{call}" not in vars(type(self)):
            raise AttributeError(call)

        def answer(*arguments: Any, **named: Any) -> Any:
            if self.signals.get(call):
                signal.raise_signal(self.signals[call].pop(0))
            if self.before.get(call):
                raise self.before[call].pop(0)
            result = getattr(self, f"answer_{call}")(*arguments, **named)
            if self.after.get(call):
                raise self.after[call].pop(0)
            return result

        return answer

    def answer_get_job_graph(self, job_id: str) -> Any:
        return SimpleNamespace(job_graph="the first version")

    def answer_trigger_savepoint(self, *_: str) -> str:
        return "/savepoint"

    def answer_stop_with_savepoint(self, job_id: str, _: str, *, trigger_id: str) -> str:
        if self.refusal and self.refused in ("", trigger_id):  # an id that was refused stays so
            self.refused = trigger_id
            raise RequestRefused(self.refusal)
        if job_id not in self.running:
            raise RequestRefused(f"job {job_id} has ended")
        del self.running[job_id]
        self.finished.add(job_id)
        return "/savepoint"

    def answer_submit(self, graph: Any) -> None:
        if graph.job_id in self.known:
            raise RequestRefused("there is such a job")
        self.running[graph.job_id] = self.known[graph.job_id] = graph.version
        self.started_from = graph.start

    def answer_list_page(self, page_size: int) -> None:
        pass

    def answer_list_jobs(self) -> list[Any]:
        return [SimpleNamespace(job_id=job_id) for job_id in self.known]

    def answer_cancel(self, job_id: str) -> None:
        del self.running[job_id]
        self.is_cancelled(job_id)

    def answer_get_job(self, job_id: str) -> Any:
        ended = JobStatus.FINISHED if job_id in self.finished else JobStatus.CANCELED
        status = JobStatus.RUNNING if job_id in self.running else ended
        return SimpleNamespace(
            overview=SimpleNamespace(status=encode_job_status(status), subtasks_by_state={"RUNNING": 2})
        )

    def answer_trigger_checkpoint(self, job_id: str, *, timeout_s: float) -> None:
        self.completes = job_id in self.running

    def answer_list_checkpoints(self, job_id: str) -> Any:
        stopped = SimpleNamespace(
            path="/savepoint", checkpoint_id=7, snapshot_type=checkpoint_pb2.SNAPSHOT_TYPE_SAVEPOINT_SUSPEND
        )
        return SimpleNamespace(
            counts=SimpleNamespace(completed=int(self.completes)),
            latest_completed=SimpleNamespace(path="/checkpoint", checkpoint_id=7),
            latest_savepoint=stopped if job_id in self.finished else SimpleNamespace(path="/first", snapshot_type=3),
        )

    def answer_explain_job(self, job_id: str) -> Any:
        return SimpleNamespace(summary="slow")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The update asks this one."""
    monkeypatch.setattr(job_update, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(job_update, "decode_job_graph", lambda version: version)
    monkeypatch.setattr(job_update, "snapshot_at_hand", lambda _: None)
    monkeypatch.setattr(job_update, "plan_job", lambda *_, **__: SimpleNamespace(would_start=True, operators=()))
    monkeypatch.setattr(
        job_update,
        "replace",
        lambda version, job_id, savepoint_restore: SimpleNamespace(
            version=str(version), job_id=job_id, start=savepoint_restore.path
        ),
    )
    return Cluster()


def update(cluster: Cluster, **options: Any) -> Any:
    program: Any = SimpleNamespace(job_graph=Version("the second version"))
    asked: Any = cluster
    return update_job(asked, "old", program, **options)


GONE = CoordinatorUnreachable("no coordinator answers")


def test_a_job_whose_rows_come_from_its_program_is_not_updated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new version had no query, and waited for rows for ever; the update had been said to have succeeded."""
    monkeypatch.setattr(Version, "staged_directories", ("/checkpoints/snapline-staged-1",))

    with pytest.raises(
        UpdateFailed, match="job old runs on as it was: it has a streaming DataFrame, whose query runs in"
    ):
        update(cluster)
    assert cluster.running == {"old": "the first version"}


def test_a_job_whose_rows_come_from_its_program_is_not_updated_where_it_goes_on_from_a_snapshot(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a job has no directory of its own, and the update went through."""
    schema = pa.schema([("n", pa.int64())])
    source = StreamedRowsSource("", "orders", schema, {}, bounded=False, restored="/before", retained=1)
    node = SimpleNamespace(uid="orders", is_source=True, payload=cloudpickle.dumps(SourceSpec(source, (), None)))
    monkeypatch.setattr(Version, "vertices", (SimpleNamespace(operators=[node]),))

    with pytest.raises(UpdateFailed, match="job old runs on as it was: it has a streaming DataFrame"):
        update(cluster)
    assert cluster.running == {"old": "the first version"}


def test_a_job_is_not_updated_to_one_with_another_dataframe(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody had computed it, and the new version went on as if it had no rows."""
    spec = SourceSpec(StagedRowsSource("", (), pa.schema([("n", pa.int64())]), {}), (), None)
    node = SimpleNamespace(uid="orders", is_source=True, payload=cloudpickle.dumps(spec))
    plan = SimpleNamespace(would_start=True, operators=[SimpleNamespace(uid="orders", verdict=NEW)])
    monkeypatch.setattr(Version, "vertices", (SimpleNamespace(operators=[node]),))
    monkeypatch.setattr(job_update, "plan_job", lambda *_, **__: plan)

    with pytest.raises(UpdateFailed, match="job old runs on as it was: the DataFrame of source 'orders' is new"):
        update(cluster)
    assert cluster.running == {"old": "the first version"}


def test_a_job_that_has_ended_is_not_said_to_run_on(cluster: Cluster) -> None:
    """The line said that it runs on as it was, because it does not run."""
    cluster.running.clear()
    cluster.before["get_job_graph"] = [RequestRefused("job old does not run, and its graph is kept no longer")]

    with pytest.raises(UpdateFailed, match=r"^job old is CANCELED, and cannot be updated; snapline run -s SAVEPOINT"):
        update(cluster)


def test_who_may_see_one_job_only_stops_none(cluster: Cluster) -> None:
    """The new version is another job, and so is the old one when it is brought back: with a credential for one job,
    the old one was stopped and neither started."""
    refusal = RequestRefused("this credential is for job old only, and the call is about all jobs")
    cluster.before |= {call: [refusal] * 9 for call in ("list_page", "list_jobs", "submit")}

    with pytest.raises(UpdateFailed, match=r"^job old runs on as it was: this credential is for job old only"):
        update(cluster)
    assert cluster.running == {"old": "the first version"}


def test_a_new_version_that_is_refused_gives_way_to_the_old_one(cluster: Cluster) -> None:
    """The old one had stopped by then, and nothing ran any more."""
    cluster.before["submit"] = [RequestRefused("its name cannot be printed")]

    with pytest.raises(UpdateFailed, match="its name cannot be printed; the old one goes on as job"):
        update(cluster)
    assert list(cluster.running.values()) == ["the first version"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["submit", "get_job", "list_checkpoints", "list_jobs"])
def test_a_coordinator_that_is_away_for_a_while_is_asked_again(cluster: Cluster, call: str, when: str) -> None:
    """Also when it has accepted the new version and did not come to say so: there are not two of it."""
    getattr(cluster, when)[call] = [GONE, GONE]

    done = update(cluster)
    assert cluster.running == {done.job_id: "the second version"}


def test_lines_that_nobody_reads_do_not_stop_an_update(cluster: Cluster) -> None:
    """The reader of a pipe may have gone when the old job has stopped."""

    def say(line: str) -> None:
        if "is compared" not in line:
            raise BrokenPipeError

    done = update(cluster, say=say)
    assert cluster.running == {done.job_id: "the second version"}


@pytest.mark.parametrize(("completes", "runs"), [(True, "the second version"), (False, "the first version")])
def test_an_interrupt_leaves_one_of_both(cluster: Cluster, completes: bool, runs: str) -> None:
    """The new one, when it has completed a checkpoint meanwhile, and else the old one again."""
    cluster.completes = completes
    cluster.before["get_job"] = [KeyboardInterrupt()]
    if completes:
        update(cluster)
    else:
        with pytest.raises(UpdateFailed, match="was interrupted; the old one goes on as job"):
            update(cluster)
    assert list(cluster.running.values()) == [runs]


@pytest.mark.usefixtures("ended_by_signals")
def test_who_interrupts_twice_is_told_where_to_start_from(cluster: Cluster) -> None:
    """Nothing may run then, which is what was asked for."""
    cluster.completes = False
    cluster.before["get_job"] = [KeyboardInterrupt(), KeyboardInterrupt()]

    with pytest.raises(KeyboardInterrupt, match="start one of them from /savepoint"):
        update(cluster)


def test_an_old_version_that_cannot_start_either_is_told(cluster: Cluster) -> None:
    """With the savepoint, from which one of both can be started."""
    cluster.before["submit"] = [RequestRefused("no"), RequestRefused("too many jobs")]

    with pytest.raises(UpdateFailed, match=r"cannot start: too many jobs: .* start one of them from /savepoint"):
        update(cluster)


def test_a_new_version_that_takes_checkpoints_seldom_takes_the_place(cluster: Cluster) -> None:
    """The first one of a job that takes one an hour came after the time for it: each update of such a job ended with
    the old version, however well the new one worked."""
    cluster.completes = False
    cluster.before["trigger_checkpoint"] = [RequestRefused("its tasks have just failed")]

    done = update(cluster, timeout_s=2.0)
    assert cluster.running == {done.job_id: "the second version"}


# --- while the old one is asked to stop ------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_coordinator_that_dies_while_the_old_job_stops(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The job runs on, or has stopped and nobody heard of it: nothing ran any more then."""
    monkeypatch.setattr(job_update, "END_SECONDS", 2.0)
    getattr(cluster, when)["stop_with_savepoint"] = [GONE]
    if when == "before":
        cluster.refusal = "not all tasks are running yet"

    done = update(cluster)
    assert cluster.running == {done.job_id: "the second version"}
    assert cluster.started_from == "/savepoint"


@pytest.mark.parametrize("call", ["trigger_savepoint", "stop_with_savepoint"])
def test_a_savepoint_that_cannot_be_written_leaves_the_old_job(cluster: Cluster, call: str) -> None:
    """And the line says so, besides why."""
    cluster.before[call] = [RequestRefused("no savepoint: read-only file system")]

    with pytest.raises(UpdateFailed, match="job old runs on as it was: no savepoint: read-only file system"):
        update(cluster)
    assert cluster.running == {"old": "the first version"}


@pytest.mark.parametrize("call", ["stop_with_savepoint", "list_jobs", "get_job"])
def test_a_coordinator_that_does_not_come_back(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The line says what was under way, and what to type when there is one again."""
    monkeypatch.setattr(job_update, "END_SECONDS", 0.0)
    cluster.completes = False
    cluster.before[call] = [GONE] * 100
    if call == "stop_with_savepoint":
        cluster.before["get_job"] = [GONE] * 100

    with pytest.raises(UpdateFailed, match=r"no coordinator answers.*: .*snapline list.*snapline run -s \S+ SCRIPT"):
        update(cluster)


def test_who_interrupts_twice_while_the_old_job_stops_is_told(cluster: Cluster) -> None:
    """It was asked to, and may stop when nobody looks any more."""
    cluster.signals["stop_with_savepoint"] = [signal.SIGINT]
    cluster.before["stop_with_savepoint"] = [KeyboardInterrupt()]

    with pytest.raises(KeyboardInterrupt, match=r"job old was asked to stop.*: .*snapline run -s SAVEPOINT SCRIPT"):
        update(cluster)


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def ended_by_signals() -> Iterator[None]:
    """What they do by themselves, but without the end of this process; a shell starts what is in its background with
    SIGINT ignored."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    handlers = {signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        assert signal.getsignal(number) is handlers[number]
        signal.signal(number, handler)


@pytest.mark.usefixtures("ended_by_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("call", ["trigger_savepoint", "stop_with_savepoint", "submit", "get_job", "cancel"])
def test_a_signal_at_any_time_leaves_one_of_both(cluster: Cluster, call: str, number: signal.Signals) -> None:
    """SIGTERM, and the end of a terminal, had left none when they came after the stop."""
    cluster.signals[call] = [number]
    cluster.completes = False
    options = {"timeout_s": 0.0} if call == "cancel" else {}

    with pytest.raises(
        (UpdateFailed, KeyboardInterrupt), match=r"job old runs on as it was|the old one goes on as job"
    ):
        update(cluster, **options)
    assert list(cluster.running.values()) == ["the first version"]


@pytest.mark.usefixtures("ended_by_signals")
def test_a_signal_while_is_looked_whether_the_new_one_works_is_too_late(cluster: Cluster) -> None:
    """It has completed a checkpoint, so that the update is over."""
    cluster.signals["list_checkpoints"] = [signal.SIGTERM]

    done = update(cluster)
    assert cluster.running == {done.job_id: "the second version"}


# --- a new version that works when it is given up --------------------------------------------------------------------


def test_a_version_that_completes_a_checkpoint_while_it_is_given_up_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sinks have committed, so that the old one would write rows again. Neither ran."""
    kept = Configuration({CHECKPOINTING_RETENTION.key: "RETAIN_ON_CANCELLATION"})
    monkeypatch.setattr(Version, "configuration", kept)
    cluster.completes = False
    cluster.is_cancelled = lambda _: setattr(cluster, "completes", True)

    done = update(cluster, timeout_s=0.0)
    assert cluster.running == {done.job_id: "the second version"}
    assert cluster.started_from == "/checkpoint" == done.savepoint


def test_what_has_become_of_a_checkpoint_that_went_with_its_job_is_told(cluster: Cluster) -> None:
    """The command named it as something to start from."""
    cluster.completes = False
    cluster.is_cancelled = lambda _: setattr(cluster, "completes", True)

    with pytest.raises(UpdateFailed, match=r"neither runs.*come twice.*: snapline run -s /savepoint SCRIPT"):
        update(cluster, timeout_s=0.0)


def test_a_version_that_comes_to_its_end_while_it_is_given_up_has_taken_the_place(cluster: Cluster) -> None:
    """All of its rows are out; the old one had started again after it."""
    cluster.completes = False
    cluster.is_cancelled = cluster.finished.add

    done = update(cluster, timeout_s=0.0)
    assert {} == cluster.running
    assert done.job_id in cluster.finished


def test_a_version_that_fails_just_when_it_is_given_up_makes_way_for_the_old_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To cancel a job that has ended is refused, and neither ran then."""

    def fails(job_id: str) -> None:
        del cluster.running[job_id]
        raise RequestRefused(f"job {job_id} is FAILED")

    cluster.completes = False
    monkeypatch.setattr(cluster, "answer_cancel", fails)

    with pytest.raises(UpdateFailed, match="the old one goes on as job"):
        update(cluster, timeout_s=0.0)
    assert list(cluster.running.values()) == ["the first version"]
