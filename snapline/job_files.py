"""Files, archives and packages that travel with a job: `env.add_file`, `add_archive` and `add_requirements`.

What was added is checked at once. A job that brings its own Spark application hands it to Spark, which gives it to
every executor before a TaskManager starts there; a local run takes it from where it lies. TaskManagers of a service
have started long before, so that such a job is refused there. Requirements are installed by pip into a directory that
stands for the file's text, once, and the program itself can import them from then on.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snapline.dataflow.errors import JobDefinitionError
from snapline.runtime.absolute_paths import absolute_path

ROOT_VARIABLE = "SNAPLINE_JOB_FILES"
"""In a TaskManager within Spark, the directory where Spark puts what came with the application."""
ARCHIVE_ENDS = (".tar.gz", ".tgz", ".tar", ".zip", ".jar")
_HERE: dict[str, Path] = {}
"""Files that were added in this process, by name: a local run has them where they lie."""
_ARCHIVES_HERE: dict[str, Path] = {}
"""Archives that were added in this process, by name."""
REQUIRED_HERE: set[str] = set()
"""Directories of packages that jobs of this process require, as they stand in `sys.path`."""
_UNPACKED: dict[Path, Path] = {}
"""Directories with what was in archives of this process, by archive."""


@dataclass
class JobFiles:
    """What was added to one job."""

    files: dict[str, Path] = field(default_factory=dict)
    archives: dict[str, Path] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)
    """Names of archives that hold Python packages."""

    def add_file(self, path: str | Path) -> None:
        """Add one file. Raises JobDefinitionError when it is not there, or another has its name."""
        file = self._checked("add_file", path, Path(path).name)
        self.files[file.name] = _HERE[file.name] = file

    def add_archive(self, path: str | Path, name: str) -> None:
        """Add one archive, which is unpacked as a directory of that name. Raises JobDefinitionError."""
        name = name or Path(path).name
        file = self._checked("add_archive", path, name)
        if not file.name.endswith(ARCHIVE_ENDS):
            raise JobDefinitionError(f"add_archive({str(path)!r}): Spark unpacks {', '.join(ARCHIVE_ENDS)}")
        self.archives[name] = _ARCHIVES_HERE[name] = file

    def add_requirements(self, path: str | Path) -> None:
        """Install what a requirements file asks for, and let it travel. Raises JobDefinitionError with pip's reason."""
        file = self._checked("add_requirements", path, "")
        directory = _installed(file)
        name = f"requirements-{directory.name}"
        if name not in self.archives:
            self.archives[name] = _packed(directory)
            self.packages.append(name)
        REQUIRED_HERE.add(str(directory))
        if str(directory) not in sys.path:
            sys.path.append(str(directory))

    def _checked(self, what: str, path: str | Path, name: str) -> Path:
        file = absolute_path(path).resolve()
        if not file.is_file():
            raise JobDefinitionError(f"{what}({str(path)!r}): there is no file {file}")
        taken = self.files.get(name) or self.archives.get(name)
        if taken is not None and taken != file:
            raise JobDefinitionError(
                f"{what}({str(path)!r}): {taken} has the name {name!r} already; rename one of them"
            )
        return file

    def refuse_service(self) -> None:
        """Raise JobDefinitionError if anything was added, because the job is for a coordinator that runs already."""
        for name in [*self.files, *self.archives]:
            raise JobDefinitionError(
                f"{name!r} was added to a job for a coordinator that runs as a service, whose TaskManagers have started "
                "already: start them with `spark-submit --files` or --archives, or run the job in a Spark application of its own"
            )

    def take_here(self) -> None:
        """Let `job_file` find them in this process, in the place of what another job has under their names."""
        for name in self.archives:
            _HERE.pop(name, None)
        _HERE.update(self.files)
        _ARCHIVES_HERE.update(self.archives)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Within, and in threads that begin there, `job_file` finds these before those of other jobs that run here."""
        token = _OF_THIS_JOB.set(self)
        try:
            yield
        finally:
            _OF_THIS_JOB.reset(token)

    def hand_to_spark(self, host: Any) -> tuple[str, ...]:
        """Give everything to a session (a SparkHost); returns the names of archives with Python packages."""
        for file in self.files.values():
            host.add_file(file)
        for name, file in self.archives.items():
            host.add_archive(file, name)
        return tuple(self.packages)


_OF_THIS_JOB: ContextVar[JobFiles | None] = ContextVar("job files", default=None)


def job_file(name: str) -> Path:
    """Where a file or archive lies that was added to the job (`env.add_file`, `env.add_archive`), in a function that
    runs anywhere; an archive is a directory there. Raises JobDefinitionError for a name that was not added.

    >>> _ = open(f"{tmp}/rates.csv", "w").write("EUR,1.1")
    >>> _ = env.add_file(f"{tmp}/rates.csv")
    >>> sl.job_file("rates.csv").read_text()
    'EUR,1.1'
    """
    root = os.environ.get(ROOT_VARIABLE)
    if root is not None and (Path(root) / name).exists():
        return Path(root) / name
    own = _OF_THIS_JOB.get()
    has_it = own is not None and (name in own.files or name in own.archives)
    files, archives = (own.files, own.archives) if own is not None and has_it else (_HERE, _ARCHIVES_HERE)
    archive = archives.get(name)
    found = files.get(name)
    if found is None and archive is not None:
        if archive not in _UNPACKED:
            _UNPACKED[archive] = _unpacked(archive)
        found = _UNPACKED[archive]
    if found is None:
        raise JobDefinitionError(
            f"job_file({name!r}): nothing of that name came with the job; env.add_file or add_archive before it is executed"
        )
    return found


def _unpacked(archive: Path) -> Path:
    directory = tempfile.mkdtemp(prefix="snapline-archive-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    if archive.suffix in {".zip", ".jar"}:
        shutil.unpack_archive(archive, directory, "zip")
    else:
        shutil.unpack_archive(archive, directory, filter="data")
    return Path(directory)


def _installed(requirements: Path) -> Path:
    """The directory into which pip has installed them, once for each text, Python and machine."""
    text = requirements.read_bytes() + f"{sys.version_info[:2]} {sysconfig.get_platform()}".encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "snapline" / "requirements"
    directory = cache / hashlib.blake2b(text, digest_size=8).hexdigest()
    if not directory.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        begun = Path(tempfile.mkdtemp(prefix="begun-", dir=cache))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            done = subprocess.run(
                [*command, "--target", str(begun), "-r", str(requirements)],
                cwd=requirements.parent,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                why = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
                raise JobDefinitionError(f"add_requirements({str(requirements)!r}): pip says {why[-1][:500]}")
            with contextlib.suppress(OSError):  # another process has just done the same
                begun.rename(directory)
        finally:
            shutil.rmtree(begun, ignore_errors=True)
    return directory


def _packed(directory: Path) -> Path:
    """The directory as an archive that lies beside it."""
    archive = directory.with_name(f"{directory.name}.tar")
    if not archive.is_file():
        begun = directory.with_name(f"{directory.name}.{os.getpid()}.tar")
        with tarfile.open(begun, "w", dereference=True) as opened:
            for path in sorted(directory.iterdir()):  # Spark unpacks no entry for the directory itself
                opened.add(path, path.name)
        begun.replace(archive)
    return archive
