"""How the page writes what it is told; it is JavaScript, which Node runs here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from snapline.coordinator.web.page_app import STATIC

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")


def test_any_line_that_a_function_prints_is_shown(tmp_path: Path) -> None:
    """Those that look like lines of a log, too: one that broke the view hid all lines of its TaskManager."""
    printed = [
        '{"ts":"12:00","level":"INFO","msg":"read","context":{"rows":3}}',
        '{"ts":"12:00","level":"INFO","msg":"read","context":null,"exception":null}',
        "null",
        "a price: 7",
    ]
    words = shutil.copy(STATIC / "words.js", tmp_path / "words.mjs")
    script = (
        f"import {{ logLine }} from {str(words)!r}; console.log(JSON.stringify({json.dumps(printed)}.map(logLine)));"
    )
    shown = subprocess.run(
        ["node", "--input-type=module", "--eval", script], capture_output=True, text=True, check=True
    )
    assert json.loads(shown.stdout) == ["12:00 INFO read  rows=3", "12:00 INFO read  ", "null", "a price: 7"]
