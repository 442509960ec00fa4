"""docs/tutorial.md does what it says: its programs run, one of them is killed with signal 9, and they print what the
page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.cluster import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
PROGRAMS = dict(re.findall(r'```python title="([\w.]+)"\n(.*?)```', PAGE, re.DOTALL))
SHOWN = re.findall(r"^\$ python (\w+\.py)\n((?:[^$`].*\n)*)", PAGE, re.MULTILINE)
SOME_FILES = 8


def plain(text: str) -> str:
    """Numbers that differ from run to run are one letter: ids of processes, durations, and how far a job was when it
    was killed. What is said of rows after a restart is left out: a busy machine may cost the second run one."""
    lines = text.replace(" (those after a restart twice)", "").splitlines()
    varying = ("process ", "FINISHED ")
    return "\n".join(
        re.sub(r"\d[\d.,]*", "N", line) if line.startswith(varying) else re.sub(r"^\d+( rows.*DIFFERENT)", r"N\1", line)
        for line in lines
    )


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}


def run(program: str, where: Path) -> str:
    """What it prints."""
    done = subprocess.run(
        [sys.executable, program],
        cwd=where,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def killed_in_the_middle(program: str, where: Path) -> str:
    """Run it until some of its output is visible, and kill it with signal 9."""
    with subprocess.Popen(
        [sys.executable, program],
        cwd=where,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        process_group=0,
    ) as process:
        wait_until(
            lambda: process.poll() is not None or len(list(where.glob("takings/*.parquet"))) >= SOME_FILES,
            "files in takings",
            seconds=200,
        )
        os.kill(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
    assert -signal.SIGKILL == process.returncode
    return output


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial_prints_what_it_shows(tmp_path):
    """From an empty folder to a job that was killed and has every row once; in the order of the page."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    printed = []
    for number, (program, _) in enumerate(SHOWN):
        first_run = program == "job.py" and all(earlier != "job.py" for earlier, _ in SHOWN[:number])
        output = killed_in_the_middle(program, tmp_path) if first_run else run(program, tmp_path)
        printed.append((program, plain(output)))
    assert [(program, plain(shown)) for program, shown in SHOWN] == printed
    assert ["make_orders.py", "job.py", "check.py", "job.py", "check.py", "first.py"] == [name for name, _ in SHOWN]
