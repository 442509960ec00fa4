"""Options of a Java that starts briefly, and where its archive lies."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from snapline.spark import java_archive
from snapline.spark.java import SHIM_MARK, JavaHome
from snapline.spark.java_archive import QUIET, archive_of, start_options

BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def home_of(directory: Path, version: int = 17) -> JavaHome:
    """A shim of a Java of this release, which nobody runs."""
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "java").write_text(f"#!/bin/sh\n{SHIM_MARK}\n")
    return JavaHome(directory, version, shimmed=True)


def test_without_an_archive_java_goes_without(tmp_path):
    """It compiles less, and collects with one thread."""
    assert start_options(home_of(tmp_path), {}) == BRIEF


@pytest.mark.parametrize(
    ("version", "option"), [(17, "SharedArchiveFile"), (21, "SharedArchiveFile"), (25, "AOTCache")]
)
def test_the_archive_of_this_java_is_named(tmp_path, version, option):
    """By the option that its release knows, quietly, and quoted for Spark's launcher."""
    home = home_of(tmp_path / "a directory", version)
    archive_of(home).touch()
    assert start_options(home, {}) == f"{BRIEF} {QUIET} -XX:{option}='{archive_of(home)}'"


def test_what_the_user_has_chosen_is_not_chosen_again(tmp_path):
    """Java does not start with two collectors."""
    home = home_of(tmp_path)
    assert start_options(home, {"JAVA_TOOL_OPTIONS": "-XX:+UseParallelGC"}) == "-XX:TieredStopAtLevel=1"
    assert start_options(home, {"_JAVA_OPTIONS": "-XX:-TieredCompilation"}) == "-XX:+UseSerialGC"


def test_a_java_that_writes_no_archive_in_time_is_ended_and_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory is slow it took five minutes, and then the set-up failed with a traceback and left it running."""
    home, started = home_of(tmp_path / "java"), list[subprocess.Popen[bytes]]()

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            started.append(self)

    monkeypatch.setattr(java_archive, "ensure_java", lambda: home)
    monkeypatch.setattr(java_archive, "PROGRAM", "import signal; signal.pause()")
    monkeypatch.setattr(java_archive, "WRITE_TIMEOUT_SECONDS", 0)
    monkeypatch.setattr(subprocess, "Popen", Noted)
    told = java_archive.write_archive()
    assert re.fullmatch(r"Java 17 writes no archive .* within 0 s \(remove /.*\.none to try again\): Spark .*", told)
    assert java_archive.write_archive() == told
    assert [one.returncode for one in started] == [-signal.SIGKILL]


def test_another_java_has_another_archive(tmp_path):
    """A shim says which Java it hands over to, and an archive is of that one only."""
    home = home_of(tmp_path)
    first = archive_of(home)
    home.java.write_text("another one")
    assert archive_of(home) != first
