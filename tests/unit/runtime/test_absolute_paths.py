"""Relative paths and home directories, also where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapline.connectors.files.filesystems import absolute
from snapline.dataflow.errors import SnaplineError
from snapline.environment import absolute_path as path_of_environment
from snapline.runtime.absolute_paths import absolute_path, path_of_user, path_to_send
from snapline.runtime.storage.local_storage import LocalStorage
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.state_reader import located

EVERY = [absolute_path, path_of_user, absolute, path_of_environment, LocalStorage, located]


def test_paths_are_of_the_working_directory_or_of_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tilde means something only where users write it themselves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/homes/anna")
    assert absolute_path("out") == path_of_user("out") == tmp_path / "out"
    assert path_of_user("~/out") == Path("/homes/anna/out")
    assert absolute_path("~/out") == tmp_path / "~" / "out"


@pytest.mark.parametrize("takes", [absolute_path, path_of_user, path_to_send, absolute, path_of_environment, located])
def test_a_url_of_a_local_path_may_have_one_slash(takes: object) -> None:
    """Flink prints its checkpoints so; `file:/data` was a directory `file:` below the working directory."""
    assert callable(takes)
    assert str(takes("file:/data/a%20b")) == "/data/a b"


def test_files_at_a_url_with_one_slash_are_found(tmp_path: Path) -> None:
    """Clients in other languages send it as it is."""
    url = f"file:{tmp_path}/savepoint/_metadata"
    storage, name = StateStorages(open_storage).locate(str(tmp_path / "job"), url)
    storage.put(name, b"metadata")
    assert (tmp_path / "savepoint" / "_metadata").read_bytes() == b"metadata"


@pytest.mark.parametrize("takes", EVERY)
def test_a_working_directory_that_is_gone_is_one_line(
    takes: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the traceback of `os.getcwd`; what is absolute needs none."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert callable(takes)
    takes(str(tmp_path))
    with pytest.raises(SnaplineError, match=r"where out is: the working directory of this process is gone; change to"):
        takes("out")


@pytest.mark.parametrize("takes", [path_of_user, absolute, LocalStorage])
def test_a_user_without_a_home_is_one_line(takes: object) -> None:
    """It was a RuntimeError that does not name the path."""
    assert callable(takes)
    with pytest.raises(SnaplineError, match=r"where ~nobody-of-that-name/out is: that user has no home directory"):
        takes("~nobody-of-that-name/out")


def test_a_path_that_is_no_text_is_one_line() -> None:
    """It was the traceback of a message that cannot be encoded; so every other letter is in the locale C."""
    assert path_to_send("/savepoints/übung") == Path("/savepoints/übung")
    with pytest.raises(
        SnaplineError, match=r"cannot send '/savepoints/\\udcff' to a coordinator: it is no text in UTF-8"
    ):
        path_to_send("/savepoints/\udcff")
