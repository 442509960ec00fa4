"""gRPC as a TaskManager imports it: with few wake-ups, and with nothing left in the environment."""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest

from snapline.runtime.rpc.grpc_polling import (
    VARIABLE,
    import_grpc_with_few_wake_ups,
    installed_version,
    is_tried,
)

IMPORTS = """
import os, sys
from snapline.runtime.rpc.grpc_polling import import_grpc_with_few_wake_ups
seen = []
class Noted(dict):
    def __setitem__(self, name, value):
        seen.append(value)
        os.environ[name] = value
    def __delitem__(self, name):
        del os.environ[name]
import_grpc_with_few_wake_ups(Noted(os.environ))
assert "grpc" in sys.modules
import grpc
grpc.insecure_channel("127.0.0.1:1").close()
print(seen, "GRPC_EXPERIMENTS" in os.environ)
"""


def test_the_installed_grpc_knows_both_names() -> None:
    """It would say that an experiment is unknown; what was set for the import is gone behind it."""
    ran = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert (ran.stdout.strip(), ran.stderr) == ("['-event_engine_client,-event_engine_listener'] False", "")


def test_a_process_that_has_grpc_already_is_left_alone() -> None:
    """It was read when gRPC was imported."""
    environ: dict[str, str] = {}
    import_grpc_with_few_wake_ups(environ)
    assert environ == {} and grpc.__version__ == installed_version()


def test_what_somebody_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where gRPC is not imported yet."""
    monkeypatch.delitem(sys.modules, "grpc")
    environ = {VARIABLE: "event_engine_client"}
    import_grpc_with_few_wake_ups(environ)
    assert environ == {VARIABLE: "event_engine_client"} and "grpc" not in sys.modules


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.67.0", True), ("1.85.1", True), ("1.86.0", False), ("1.86.0rc1", False), ("2.0.0", False), ("", False)],
)
def test_a_grpc_that_nobody_has_tried_is_left_alone(version: str, expected: bool) -> None:
    """It would write a line about an unknown experiment into every log."""
    assert is_tried(version) is expected
