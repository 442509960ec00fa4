"""Options of a Java that starts briefly, and where its archive lies."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_another_java_has_another_archive(tmp_path):
    """A shim says which Java it hands over to, and an archive is of that one only."""
    home = home_of(tmp_path)
    first = archive_of(home)
    home.java.write_text("another one")
    assert archive_of(home) != first
