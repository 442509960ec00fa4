"""What somebody left in high availability storage keeps no coordinator from starting: whole ones start on it here,
inside of the test's process, and the job beside it begins."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from snapline.client import ClusterClient
from snapline.coordinator.cluster_entrypoint import ClusterEntrypoint
from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.coordinator.ha.embedded import EmbeddedHighAvailability
from snapline.dataflow.config import Configuration
from snapline.dataflow.ids import CheckpointID, JobID, LeaderSessionID
from snapline.runtime.logs import make_logger
from snapline.runtime.rpc.security import Security
from snapline.runtime.signing import Signer
from snapline.runtime.storage.local_storage import LocalStorage
from tests.integration.test_former_names import FORMER, SETTINGS, waiting_job

SECRET = {"security.storage.secrets": "ours" * 8}
OURS = Signer.of_storage(Configuration(SECRET))
WAITS, BESIDE = waiting_job("waits"), waiting_job("beside")


def stored(ha: Path) -> EmbeddedHighAvailability:
    """The predecessor, which has stored a job that waits for its slot."""
    before = EmbeddedHighAvailability(LocalStorage(str(ha)), LeaderSessionID("before"), durable=True, signer=OURS)
    before.job_graphs.put(WAITS)
    return before


class Started:
    """What is seen of a coordinator that has started, while its one healthy job waits."""

    def __init__(self, client: ClusterClient, log: io.StringIO) -> None:
        self.client, self._log = client, log

    @property
    def causes(self) -> dict[str, str]:
        """Why each job that was listed does not run."""
        return {job.job_id: job.failure.summary for job in self.client.list_jobs() if job.failure.summary}

    @property
    def said(self) -> str:
        """Everything in the log that is no information."""
        lines = [json.loads(line) for line in self._log.getvalue().splitlines()]
        return "\n".join(json.dumps(line) for line in lines if line["level"] != "INFO")


@contextmanager
def started(directory: Path, slots: int = 1) -> Iterator[Started]:
    """A coordinator on what is there; it has asked for the slots of the healthy jobs."""
    log = io.StringIO()
    settings = {
        **SETTINGS,
        "high-availability.storageDir": str(directory / "ha"),
        "execution.checkpointing.dir": str(directory / "checkpoints"),
        **SECRET,
    }
    config = CoordinatorConfig("127.0.0.1:0", Configuration(settings), metrics_port=-1)
    entrypoint = ClusterEntrypoint(config, make_logger("coordinator", stream=log), on_fatal=lambda: None)
    try:
        client = ClusterClient(entrypoint.start(), Security())
        while client.required_resources().required_slots != slots:
            pass
        yield Started(client, log)
        client.close()
    finally:
        entrypoint.stop()


def test_a_directory_in_the_place_of_a_mark_costs_the_mark(tmp_path: Path) -> None:
    """The job starts without it, a line names the place, and the next leader finds it mended."""
    stored(tmp_path / "ha")
    place = tmp_path / "ha" / "starting" / WAITS.job_id
    (place / "deeper").mkdir(parents=True)
    with started(tmp_path) as found:
        assert f"starting/{WAITS.job_id}" in found.said
        while place.exists():
            pass


def test_a_file_in_the_place_of_all_marks_costs_the_marks(tmp_path: Path) -> None:
    """No job is parked for it."""
    stored(tmp_path / "ha")
    (tmp_path / "ha" / "starting").write_bytes(b"")
    with started(tmp_path) as found:
        assert {} == found.causes


def test_a_held_job_whose_pointer_is_of_somebody_else_is_held(tmp_path: Path) -> None:
    """What would name its checkpoint says why that is not known."""
    before = stored(tmp_path / "ha")
    before.job_graphs.put(FORMER)
    theirs = EmbeddedHighAvailability(LocalStorage(str(tmp_path / "ha")), LeaderSessionID("theirs"), durable=True)
    theirs.open_job(FORMER.job_id).pointers.add(CheckpointID(1), b"p")
    with started(tmp_path) as found:
        cause = found.causes[FORMER.job_id]
        assert "was stored by an earlier Snapline" in cause
        assert f"a checkpoint's pointer below pointers/{FORMER.job_id} is not signed" in cause


@pytest.mark.parametrize("kind", ["counter", "pointer"])
def test_a_held_job_with_other_damage_is_held(tmp_path: Path, kind: str) -> None:
    """Its counter is a file, or its pointer is signed but none."""
    before = stored(tmp_path / "ha")
    before.job_graphs.put(FORMER)
    if kind == "counter":
        LocalStorage(str(tmp_path / "ha")).put(f"counters/{FORMER.job_id}", b"")
    else:
        before.open_job(FORMER.job_id).pointers.add(CheckpointID(1), b"\xff\xff")
    with started(tmp_path) as found:
        assert "its latest checkpoint is not known" in found.causes[FORMER.job_id]


def unreadable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that not even its owner may open; root may, so that opening it is what fails."""
    place.write_bytes(b"x" * 100)
    place.chmod(0)
    opened = os.open

    def refusing(path: object, *arguments: int, **keywords: int) -> int:
        if str(path) == str(place):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)


def deep(place: Path, _: pytest.MonkeyPatch) -> None:
    """Directories whose path is longer than any that can be opened."""
    here = os.open(place.parent, os.O_RDONLY)
    for name in [place.name, *["d" * 250] * 20]:
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.parametrize("poison", [unreadable, deep])
def test_what_cannot_be_opened_among_job_graphs_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poison: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    """The storage answers: the others start, and the list names it."""
    stored(tmp_path / "ha")
    poison(tmp_path / "ha" / "jobs" / "poison", monkeypatch)
    with started(tmp_path) as found:
        ((job_id, cause),) = found.causes.items()
        assert job_id.startswith("poison") and cause.startswith("set aside: ") and "jobs/poison" in cause
        assert "cannot be read" in found.said


@pytest.mark.parametrize("name", ["9" * 255, "9" * 20, f"{(1 << 63) - 1:020d}"])
def test_an_epoch_that_no_leader_has_had_is_not_looked_at(tmp_path: Path, name: str) -> None:
    """The next one after it would have a name that no file can have."""
    stored(tmp_path / "ha")
    (tmp_path / "ha" / "leaders" / name).write_bytes(b"x")
    for _ in range(2):
        with started(tmp_path) as found:
            assert {} == found.causes


@pytest.mark.parametrize("kind", ["directory", "link", "pipe"])
def test_what_stands_where_the_next_epoch_goes_is_no_leader(tmp_path: Path, kind: str) -> None:
    """Nobody has taken over, so that whoever starts goes on behind it, again and again."""
    stored(tmp_path / "ha")
    for number in (2, 3):
        place = tmp_path / "ha" / "leaders" / f"{number:020d}"
        {"directory": place.mkdir, "link": lambda at=place: at.symlink_to("nowhere"), "pipe": lambda at=place: os.mkfifo(at)}[kind]()  # fmt: skip
    for _ in range(2):
        with started(tmp_path) as found:
            found.client.submit(replace(BESIDE, job_id=JobID(os.urandom(16).hex()), name=os.urandom(4).hex()))
            found.client.cancel(next(j.job_id for j in found.client.list_jobs() if j.job_id != WAITS.job_id))
