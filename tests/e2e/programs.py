"""Programs as a user starts them: what they print, how they end, and which processes they leave behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services import SPARK_CONF

ROOT = Path(__file__).resolve().parents[2]
NEWS = re.compile(r"snapline: (starting Spark |job '[^']*'(: waiting for slots| RUNNING| (FINISHED|CANCELED) in ))")
"""What standard error says of a job that goes well."""
MARK = "SNAPLINE_TEST_PROGRAM"
"""In the environment of a program and of everything that it starts."""
PATIENCE_SECONDS = 240.0
GONE_SECONDS = 30.0


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    code: int
    out: str
    err: str
    mark: str

    @property
    def errors(self) -> list[str]:
        """Lines of standard error that are ours to answer for: PySpark 4.0.0 ends with an empty line, and on a slow
        machine it is true for a while that Spark gives too few slots."""
        lines = [line for line in self.err.splitlines() if line and not NEWS.match(line)]
        return [line for line in lines if '"msg":"jobs need more slots than Spark gives"' not in line]

    @property
    def printed(self) -> str:
        """Standard output without the status of the job: spark-submit puts both streams of the program into it."""
        return "".join(line for line in self.out.splitlines(keepends=True) if not NEWS.match(line))


def environment(mark: str, **extra: str) -> dict[str, str]:
    """Of a user who has configured nothing (that changes what Spark does)."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("SNAPLINE_", "SPARK_", "PYSPARK_"))
    }
    return {**kept, "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(SPARK_CONF), MARK: mark, **extra}


def run(
    command: Sequence[str | Path],
    cwd: Path,
    timeout: float = PATIENCE_SECONDS,
    *,
    own_group: bool = False,
    **extra: str,
) -> Ended:
    """Run to the end, and wait until nothing of it is left. Raises AssertionError when something stays. `own_group`:
    its processes are a group, as those of a terminal are."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(mark, **extra),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        start_new_session=own_group,
    )
    assert wait_until_gone(mark) == {}, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr, mark)


def marked(mark: str, pattern: str = "") -> dict[int, str]:
    """Processes with the mark in their environment whose command line matches."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() not in (directory / "environ").read_bytes():
                continue
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if command and re.search(pattern, command):
            found[int(directory.name)] = command[:300]
    return found


def wait_until_gone(mark: str, pattern: str = "") -> dict[int, str]:
    """What is still there after a while; usually nothing."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := marked(mark, pattern)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def python(*arguments: str | Path) -> list[str | Path]:
    """A command line with this Python."""
    return [sys.executable, *arguments]


def snapline(*arguments: str | Path) -> list[str | Path]:
    """The command `snapline`."""
    return python("-m", "snapline.cli", *arguments)


def environment_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as variables of the environment."""
    return {"SNAPLINE_CONF_" + key.replace(".", "__").replace("-", "_"): value for key, value in settings.items()}
