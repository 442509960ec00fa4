"""The client for Node that submits declared jobs: what it reads in the file."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.services.node import NODE_IS_MISSING, ROOT, node_program


def strategy(**watermarks: Any) -> dict[str, Any]:
    """A job with these watermarks."""
    return {"name": "j", "operators": [{"uid": "a", "watermarks": {"column": "at", **watermarks}}]}


@pytest.mark.skipif(bool(NODE_IS_MISSING), reason=NODE_IS_MISSING)
@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            strategy(idleTimeout=5),
            "DeclaredWatermarks has no field 'idleTimeout'; there are column, maxOutOfOrdernessMs",
        ),
        (
            {"operators": [{"aggregate": {"window": {"kind": "KIND_TUMBLING"}}}]},
            "DeclaredWindow.kind is 'KIND_TUMBLING'; there are KIND_UNSPECIFIED, KIND_TUMBLING_EVENT_TIME",
        ),
        ({"operators": {"uid": "a"}}, "DeclaredJob.operators has to be an array"),
        ([], "DeclaredJob has to be an object"),
        (strategy(max_out_of_orderness_ms="1000", idle_timeout_ms=None), "127.0.0.1:1"),
        (json.loads((ROOT / "examples" / "declared_orders.json").read_text()), "127.0.0.1:1"),
    ],
    ids=["field", "value", "no array", "no object", "names of the proto file", "example"],
)
def test_what_the_file_says_is_sent_or_refused(tmp_path: Path, job: Any, said: str) -> None:
    """A field that was misspelled, or called as in the .proto file, was left out without an error, and the job had
    other watermarks or windows."""
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job))
    command = shlex.split(node_program("submit_declared.js", "--coordinator", "127.0.0.1:1", "--job", str(file)))
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert said in ended.stderr
