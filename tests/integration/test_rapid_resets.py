"""Somebody without a token opens and resets calls as fast as the coordinator's port takes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.cluster import LocalCluster

CONNECTIONS = 150


@pytest.mark.parametrize("calls", [5, pytest.param(40, marks=pytest.mark.rare)])
def test_calls_of_others_are_answered_meanwhile(tmp_path: Path, calls: int) -> None:
    """None is cancelled, and nothing is written to the log for each of a few million resets."""
    with LocalCluster(tmp_path, slots=(), token="the-token") as cluster:
        host, _, port = cluster.address.rpartition(":")
        command = [sys.executable, "-m", "tests.services.rapid_resets", host, port, str(CONNECTIONS)]
        attacker = subprocess.Popen(command, stdin=subprocess.PIPE)
        try:
            assert [cluster.client.list_jobs() for _ in range(calls)] == [[]] * calls
        finally:
            attacker.communicate()
    assert not [log for log in cluster.logs.glob("*coordinator*") if "ExecuteBatchError" in log.read_text()]
