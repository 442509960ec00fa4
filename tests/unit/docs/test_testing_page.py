"""The tests that docs/testing.md shows pass, as a user's pytest runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "testing.md").read_text()


EXAMPLE = (ROOT / "examples" / "test_orders.py").read_text()


def test_the_tests_of_the_page_pass(tmp_path):
    """Every program of the page is a file of tests or a conftest.py, in a folder with the example beside it."""
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for number, program in enumerate(programs):
        name = "conftest.py" if program.startswith("pytest_plugins") else f"test_page_{number}.py"
        (tmp_path / name).write_text(program)
    (tmp_path / "test_orders.py").write_text(EXAMPLE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    tests = PAGE.count("\ndef test_") + EXAMPLE.count("\ndef test_")
    assert [str(tests)] == re.findall(r"(\d+) passed", ended.stdout), said
