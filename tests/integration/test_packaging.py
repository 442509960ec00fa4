"""What a user's Python gets from Snapline: one name, the same from the tree, from the wheel and from the source
archive."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from snapline.runtime.version import VERSION
from tests.services.packages import ROOT, Packages, build, install, virtualenv

ROOMS = ("connectors", "coordinator", "dataflow", "protos", "runtime", "taskmanager")
METADATA = f"snapline-{VERSION}.dist-info"
IMPORTS = f"""
import importlib
for name in {ROOMS}:
    importlib.import_module("snapline." + name)
    try:
        importlib.import_module(name)
        print(name, "can be imported")
    except ImportError as error:
        print(error.name)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return build(tmp_path_factory.mktemp("packages"))


PAGE = {".html", ".js", ".css", ".json", ".LICENSE"}
"""Files of the page that a coordinator shows, with the licences of the libraries in it, and the REST API described."""


def kinds(names: list[str]) -> set[str]:
    """The endings of files in the package, or the name of one that has none."""
    return {Path(name).suffix or Path(name).name for name in names if "/snapline/" in f"/{name}"}


def test_a_wheel_brings_one_name(packages):
    """Its metadata apart, everything is in `snapline`: code, types, the wire, and the one file that Java's logs
    need."""
    names = zipfile.ZipFile(packages.wheel).namelist()
    assert {"snapline", METADATA} == {name.partition("/")[0] for name in names}
    assert {".py", ".pyi", ".proto", ".properties", ".typed"} | PAGE == kinds(names)
    assert {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"} == {
        name.removeprefix(f"{METADATA}/") for name in names if name.startswith(METADATA)
    }


def test_a_source_archive_has_the_rooms_where_the_package_has_them(packages):
    """It has no links, and nothing twice."""
    with tarfile.open(packages.archive) as opened:
        members = opened.getmembers()
    names = [member.name.partition("/")[2] for member in members]
    assert [] == [member.name for member in members if not member.isreg()]
    assert {"snapline", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore"} == {
        name.partition("/")[0] for name in names
    }
    wheel = {name for name in zipfile.ZipFile(packages.wheel).namelist() if name.startswith("snapline/")}
    assert sorted(wheel) == sorted(name for name in names if name.startswith("snapline/"))


def test_every_file_of_the_rooms_is_in_the_wheel(packages):
    """What git has of them, and nothing else."""
    folders = [*ROOMS, "snapline"]
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {name for name in listed.stdout.split("\0") if name and not (ROOT / name).is_symlink()}
    expected = {name if name.startswith("snapline/") else f"snapline/{name}" for name in tracked}
    names = zipfile.ZipFile(packages.wheel).namelist()
    assert sorted(expected) == sorted(name for name in names if name.startswith("snapline/"))


def test_a_wheel_of_the_source_archive_is_the_same_file(packages):
    """To the byte: whoever builds from the archive gets what we publish."""
    assert packages.wheel.read_bytes() == packages.wheel_of_archive.read_bytes()


def test_the_version_is_written_once(packages):
    """The metadata has it from the one line in runtime/version.py."""
    text = zipfile.ZipFile(packages.wheel).read(f"{METADATA}/METADATA").decode()
    assert VERSION == Parser().parsestr(text)["Version"]
    found = subprocess.run(
        ["git", "grep", "-lwF", f'"{VERSION}"', "--", *ROOMS, "snapline", "pyproject.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ["runtime/version.py"] == found.stdout.splitlines()


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_no_room_can_be_imported_under_its_old_name(packages, tmp_path, how):
    """From an installed wheel, and from an editable install, whose directory has links to all of them."""
    python = virtualenv(tmp_path / "venv")
    what: list[str | Path] = [packages.wheel_of_archive] if how == "wheel" else ["--editable", ROOT]
    install(python, *what)
    done = subprocess.run(
        [python, "-I", "-c", IMPORTS], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert (list(ROOMS), "") == (done.stdout.splitlines(), done.stderr)
