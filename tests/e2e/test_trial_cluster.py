"""`snapline up` and `snapline down`: a whole cluster on this machine, and nothing left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from snapline.cli import cli
from snapline.client import ClusterClient
from snapline.runtime.settings import default_layers, resolve
from snapline.trial_cluster import TrialCluster, TrialError, TrialProcess, _start_of


@pytest.mark.rare
@pytest.mark.spark
def test_a_trial_is_one_command_up_and_one_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs where is printed; a command finds the cluster by the settings file that it names; a second `up` is
    refused; after `down` nothing of it runs."""
    place = ["--directory", str(tmp_path)]
    command = [sys.executable, "-m", "snapline.cli", "up", *place, "--taskmanagers", "1", "--slots", "1"]
    started = subprocess.run(command, capture_output=True, text=True, check=False)  # its processes outlive it
    try:
        assert started.returncode == 0, started.stderr
        names = [each.name for each in TrialCluster(tmp_path).processes()]
        assert names == ["zookeeper", "coordinator-1", "coordinator-2", "spark-master", "spark-worker", "taskmanagers"]
        assert f"export SNAPLINE_CONFIG={tmp_path / 'snapline.toml'}" in started.stdout
        monkeypatch.setenv("SNAPLINE_CONFIG", str(tmp_path / "snapline.toml"))
        with ClusterClient.from_configuration(resolve(default_layers(os.environ))) as client:
            assert [each.slots for each in client.list_task_managers()] == [1]
        end = f"snapline down --directory {tmp_path}"
        assert end in started.stderr
        with pytest.raises(TrialError, match=f"runs already.*{end}"):
            TrialCluster(tmp_path).up(1, 1, print)
        processes = TrialCluster(tmp_path).processes()
    finally:
        ended = CliRunner().invoke(cli, ["down", *place])
    assert "ended taskmanagers, spark-worker, spark-master, coordinator-2, coordinator-1, zookeeper" in ended.output
    assert not [each.name for each in processes if each.is_alive]


def test_a_second_up_names_the_command_that_ends_the_first(tmp_path: Path) -> None:
    """With its directory: without one it would end another cluster, or none."""
    this = TrialProcess("coordinator-1", os.getpid(), _start_of(os.getpid()), "", "")
    (tmp_path / "processes.json").write_text(json.dumps([asdict(this)]))
    with pytest.raises(TrialError, match=f"runs already.*snapline down --directory {tmp_path}"):
        TrialCluster(tmp_path).up(1, 1, print)


def test_up_does_not_wait_for_processes_that_ended_with_their_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot `up` said that ZooKeeper had ended, and meant the one of before."""
    gone = TrialProcess("zookeeper", os.getpid(), "1", "", str(tmp_path / "log"))
    (tmp_path / "processes.json").write_text(json.dumps([asdict(gone)]))
    found: list[list[TrialProcess]] = []

    def start(cluster: TrialCluster, _port: int) -> None:
        found.append(cluster.processes())
        raise TrialError("far enough")

    monkeypatch.setattr(TrialCluster, "_start_zookeeper", start)
    with pytest.raises(TrialError, match="far enough"):
        TrialCluster(tmp_path).up(1, 1, print)
    assert found == [[]]


def test_down_ends_no_process_that_up_has_not_started(tmp_path: Path) -> None:
    """A process with the noted number and another start is somebody else's; a damaged list ends nothing."""
    assert not TrialProcess("coordinator-1", os.getpid(), "1", "", "").is_alive
    assert TrialCluster(tmp_path).down() == []
    (tmp_path / "processes.json").write_text("{")
    with pytest.raises(TrialError, match=r"processes\.json is damaged"):
        TrialCluster(tmp_path).down()
