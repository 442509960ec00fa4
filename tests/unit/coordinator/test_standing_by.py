"""What a coordinator that stood by does when it is to lead, and cannot."""

from __future__ import annotations

import signal
import socket
import threading
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from snapline.coordinator import __main__ as process
from snapline.coordinator import cluster_entrypoint, leader_candidate, standby
from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.dataflow.config import Configuration, ConfigurationError
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import silent_logger
from snapline.runtime.storage.storage_port import StorageError

CONFIG: Any = SimpleNamespace(configuration=Configuration({}), sidecar=True, status_fd=-1, address_file="")


class Session:
    """Stands for a session of ZooKeeper."""

    def __init__(self) -> None:
        self.is_over, self.reason = False, ""

    def close(self) -> None:
        self.is_over = True

    def on_over(self, tell: Any) -> None:
        """It is lost as soon as its coordinator leads."""
        self.is_over = True
        tell("lost")


class Candidacy:
    """Leads at once, as often as there is something that becomes of it."""

    def __init__(self, *, is_patient: bool, tries: int) -> None:
        self.is_patient, self._left = is_patient, tries
        self.sessions: list[Session] = []

    def next_leadership(self, stopping: Any) -> Any:
        assert all(session.is_over for session in self.sessions)
        if not self._left:
            return None
        self._left -= 1
        self.sessions.append(Session())
        return SimpleNamespace(session=self.sessions[-1])


def run(monkeypatch: pytest.MonkeyPatch, candidacy: Candidacy, *outcomes: Exception | None) -> tuple[int, int]:
    """The exit code, and how often it has tried to lead, when its starts have these outcomes."""
    left = list(outcomes)

    class Entrypoint:
        fatal_error = leadership_lost = ""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.outcome = left.pop(0)

        def start(self) -> str:
            if self.outcome is not None:
                raise self.outcome
            return "127.0.0.1:1"

        def stop(self) -> None:
            """Nothing was started."""

    monkeypatch.setattr(cluster_entrypoint, "ClusterEntrypoint", Entrypoint)
    monkeypatch.setattr(leader_candidate.Candidacy, "from_config", lambda *_: candidacy)
    monkeypatch.setattr(standby.Standby, "start", lambda _: "")
    monkeypatch.setattr(process, "PAUSE_SECONDS", 0.0)
    code = process._stand_by(CONFIG, silent_logger(), process._Stop())
    return code, len(candidacy.sessions)


AWAY = StorageError("cannot write /ha/.probe/1: read-only file system")


def test_it_gives_leadership_up_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended: a directory that was read-only for a moment took one coordinator after the other."""
    assert run(monkeypatch, Candidacy(is_patient=True, tries=3), AWAY, AWAY, None) == (0, 3)


def test_it_tries_on_once_it_has_led(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings were good then, although it never stood by."""
    assert run(monkeypatch, Candidacy(is_patient=False, tries=3), None, AWAY, None) == (0, 3)


@pytest.mark.parametrize(
    ("is_patient", "error"), [(False, AWAY), (True, ConfigurationError("port 1 is taken"))], ids=["first", "settings"]
)
def test_it_ends_where_the_settings_are_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_patient: bool, error: Exception
) -> None:
    """A store that has never been good is one of them: that is seen at once."""
    assert run(monkeypatch, Candidacy(is_patient=is_patient, tries=3), error) == (process.EXIT_REFUSED, 1)
    assert capsys.readouterr().err == f"coordinator: {error}\n"


def test_a_signal_that_comes_while_a_line_is_written_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler wrote a line, too, for which it waited for itself: nothing but signal 9 ended that coordinator."""
    writing, wrote = threading.Lock(), []

    def write(message: str, **_: str) -> None:
        assert writing.acquire(blocking=threading.current_thread() is not threading.main_thread())
        wrote.append(message)
        writing.release()

    def lead(_config: Any, _logger: Any, stopping: threading.Event, _leadership: Any) -> int:
        with writing:
            signal.raise_signal(signal.SIGTERM)
        stopping.wait()
        return 0

    monkeypatch.setattr(process, "_lead", lead)
    monkeypatch.setattr(process, "gc", SimpleNamespace(freeze=lambda: None, set_threshold=lambda *_: None))
    monkeypatch.setattr(process, "raise_file_limit", lambda: None)
    logger: Any = SimpleNamespace(info=write)
    config: Any = SimpleNamespace(configuration=Configuration({}), sidecar=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert process._run(config, logger) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert wrote == ["stopping"]


def test_it_stands_by_with_everything_or_not_at_all() -> None:
    """Where the port of /metrics was taken for a moment, as by the leader before, the next try found its server there,
    and there were no metrics until it led."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = CoordinatorConfig("127.0.0.1:0", metrics_port=port)
        waiting = standby.Standby(config, lambda: "127.0.0.1:1", silent_logger())
        with pytest.raises(SnaplineError, match="cannot serve metrics"):
            waiting.start()
    try:
        waiting.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert b"snapline_jobmanager_isLeader 0.0" in answer.read()
    finally:
        waiting.stop()
