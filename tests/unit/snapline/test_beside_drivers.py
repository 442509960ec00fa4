"""`snapline list` finds a job that runs beside a driver of the same user, and nobody else's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from snapline.beside_drivers import announce, running
from snapline.cli import cli
from snapline.coordinator.coordinator_process import CoordinatorProcess

NOBODY = 2**22 + 1
"""No process has this id: Linux gives none beyond 2^22."""


@pytest.fixture
def announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SNAPLINE_RUNTIME_DIR", str(tmp_path / "announced"))
    return tmp_path / "announced"


@pytest.fixture
def coordinator() -> Iterator[CoordinatorProcess]:
    process = CoordinatorProcess.start(bind="127.0.0.1:0", settings={}, token="secret")
    yield process
    process.stop()


def test_commands_find_the_coordinator_beside_a_driver(announced: Path, coordinator: CoordinatorProcess) -> None:
    """With its token, until the driver takes it back; of several, one has to be named."""
    take_back = announce(coordinator.address, "secret")
    listed = CliRunner().invoke(cli, ["list", "-o", "json"])
    assert (listed.exit_code, listed.stdout) == (0, "[]\n"), listed.output
    beside = f"using the coordinator at {coordinator.address}, beside driver {os.getpid()}"
    assert listed.stderr == f"{beside}; -m HOST:PORT names another one\n"
    other = announce("127.0.0.1:1", "another")
    several = CliRunner().invoke(cli, ["list"])
    assert "2 jobs run beside their drivers here: say which with" in str(several.exception) + several.output
    named = CliRunner().invoke(cli, ["list", "-o", "json", "-m", coordinator.address])
    assert (named.exit_code, named.stdout, named.stderr) == (0, "[]\n", ""), named.output
    other()
    take_back()
    assert running() == []


def test_a_token_counts_instead_of_a_file_and_is_not_added_to_one(
    announced: Path, coordinator: CoordinatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has a file of tokens in its settings was told that both are set, although it had said one: by --token, or
    none at all where a driver runs."""
    file = tmp_path / "token"
    file.write_text("another")
    monkeypatch.setenv("SNAPLINE_CONF_security__auth__file", str(file))
    named = CliRunner().invoke(cli, ["list", "-o", "json", "-m", coordinator.address, "--token", "secret"])
    file.write_text("secret")
    take_back = announce(coordinator.address, "secret")
    found = CliRunner().invoke(cli, ["list", "-o", "json"])
    take_back()

    assert (0, "[]\n") == (named.exit_code, named.stdout), named.exception
    assert (0, "[]\n") == (found.exit_code, found.stdout), found.exception


def test_what_a_driver_left_behind_is_removed_and_what_others_wrote_is_not_believed(announced: Path) -> None:
    """A file of a process that is gone goes; one that others may write is not read."""
    take_back = announce("127.0.0.1:2", "token")
    assert [(each.address, each.token, each.pid) for each in running()] == [("127.0.0.1:2", "token", os.getpid())]
    (own,) = announced.iterdir()
    assert oct(own.stat().st_mode & 0o777) == "0o600"
    left = announced / "left.json"
    left.touch(0o600)
    left.write_text(own.read_text().replace(str(os.getpid()), str(NOBODY)))
    foreign = announced / "foreign.json"
    foreign.write_text(own.read_text())
    foreign.chmod(0o622)
    broken = announced / "broken.json"
    broken.touch(0o600)
    assert len(running()) == 1
    assert sorted(file.name for file in announced.iterdir()) == sorted([own.name, "foreign.json", "broken.json"])
    take_back()
    announced.chmod(0o777)
    assert running() == []
    announce("127.0.0.1:3", "token")()
    assert not list(announced.glob("*-3.json"))
