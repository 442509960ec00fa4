"""What is particular to local storage: durability, hidden temporary files, errors that a user can act on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from snapline.runtime.storage.local_storage import LocalStorage
from snapline.runtime.storage.storage_port import StorageAlreadyExists, StorageError


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of everything that was fsynced, in order."""
    paths: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return paths


def test_a_file_is_synced_then_its_directory_then_new_parents(tmp_path: Path, synced: list[str]) -> None:
    """Nothing that a write rests on is only in the page cache afterwards."""
    storage = LocalStorage(str(tmp_path / "base"))

    storage.create("chk-1/_metadata", b"x")

    base = tmp_path / "base"
    assert str(tmp_path) in synced and str(base) in synced  # entries of base and chk-1
    file, directory = synced[-2:]
    assert Path(file).name.startswith("._metadata.")
    assert directory == str(base / "chk-1")


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_what_is_written_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    """Files 0600, directories 0700, whatever the umask: nobody else reads state, or writes a job graph."""
    storage = LocalStorage(str(tmp_path / "base"))
    before = os.umask(umask)
    try:
        storage.create("jobs/a", b"x")
        storage.put("jobs/b", b"x")
        storage.put_parts("jobs/c", (b"x", b"y"))
    finally:
        os.umask(before)

    modes = {path.relative_to(tmp_path).as_posix(): oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*")}
    files = dict.fromkeys(("base/jobs/a", "base/jobs/b", "base/jobs/c"), "0o600")
    assert {**files, "base": "0o700", "base/jobs": "0o700"} == modes


def test_a_directory_made_by_another_process_is_synced_once(tmp_path: Path, synced: list[str]) -> None:
    """The other may have died between mkdir and fsync."""
    (tmp_path / "chk-1").mkdir()
    storage = LocalStorage(str(tmp_path))

    storage.put("chk-1/a", b"x")
    assert str(tmp_path) in synced
    synced.clear()
    storage.put("chk-1/b", b"x")

    assert str(tmp_path) not in synced


def test_a_directory_deleted_meanwhile_is_made_again(tmp_path: Path) -> None:
    """A checkpoint directory that was subsumed does not break the writer that knew it."""
    storage = LocalStorage(str(tmp_path))
    storage.put("chk-1/a", b"x")
    LocalStorage(str(tmp_path)).delete_prefix("chk-1")

    storage.put("chk-1/b", b"y")

    assert storage.list("") == [("chk-1/b", 1)]


def test_half_written_files_are_never_listed_and_are_deleted_with_their_directory(tmp_path: Path) -> None:
    """What a killed writer left is invisible, and gone with the checkpoint."""
    storage = LocalStorage(str(tmp_path))
    storage.put("chk-1/a", b"x")
    (tmp_path / "chk-1" / ".segment.0123.tmp").write_bytes(b"half")

    assert storage.list("") == [("chk-1/a", 1)]
    storage.delete_prefix("chk-1")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: one clear error, no remains."""
    storage = LocalStorage(str(tmp_path))

    def full(descriptor: int, parts: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(StorageError, match="No space left on device; make room"):
        storage.put("chk-1/a", b"x")
    assert list((tmp_path / "chk-1").iterdir()) == []


def test_a_base_below_a_file_is_named(tmp_path: Path) -> None:
    """The message says which file is in the way."""
    (tmp_path / "file").write_text("x")
    storage = LocalStorage(str(tmp_path / "file" / "checkpoints"))

    with pytest.raises(StorageError, match=f"{tmp_path}/file is a file; choose another directory"):
        storage.create("chk-1/a", b"x")
    assert storage.list("") == []
    assert not storage.exists("chk-1/a")


def test_a_place_where_no_directory_can_be_made_is_named() -> None:
    """It is not said that a file is missing there."""
    with pytest.raises(StorageError, match="cannot write /proc/nowhere/chk-1/a: its directory cannot be made there"):
        LocalStorage("/proc/nowhere").create("chk-1/a", b"x")


def test_a_directory_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says who may not write, and that every machine counts."""
    storage = LocalStorage(str(tmp_path))

    def refused(*arguments: object, **keywords: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(
        StorageError, match=r"cannot write .*: Permission denied; check that user id \d+ may write there"
    ):
        storage.put("a", b"x")


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without conditional create there is no safe `_metadata`; that is said, and nothing is left."""
    storage = LocalStorage(str(tmp_path))

    def unsupported(*arguments: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    with pytest.raises(StorageError, match="has no hard links"):
        storage.create("a", b"x")
    assert list(tmp_path.iterdir()) == []


def test_directories_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long-running job makes a directory per checkpoint; only the last ones are remembered."""
    monkeypatch.setattr("snapline.runtime.storage.local_storage.KNOWN_DIRECTORIES_MAX", 3)
    storage = LocalStorage(str(tmp_path))

    for number in range(10):
        storage.put(f"chk-{number}/a", b"x")

    assert [Path(each).name for each in storage._known_directories] == ["chk-7", "chk-8", "chk-9"]


def test_what_is_no_file_of_ours_is_not_listed(tmp_path: Path) -> None:
    """A link to itself, a pipe or a name that is no text, put there by somebody, keeps nobody from what else is
    there."""
    storage = LocalStorage(str(tmp_path))
    storage.put("jobs/a", b"x")
    (tmp_path / "jobs" / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "jobs" / "pipe")
    (tmp_path / "jobs" / os.fsdecode(b"\xff")).write_bytes(b"x")
    assert [("jobs/a", 1)] == storage.list("jobs")


def test_a_directory_goes_although_somebody_else_deletes_files_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is faster at one file leaves the others to this one."""
    storage = LocalStorage(str(tmp_path))
    for number in range(5):
        storage.put(f"chk-1/state-{number}", b"x")
    unlink = os.unlink
    raced: list[str] = []

    def lost_race(path: str, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        if not raced:
            raced.append(path)
            raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "unlink", lost_race)
    storage.delete_prefix("chk-1")
    assert raced
    assert storage.list("") == []
    assert not (tmp_path / "chk-1").exists()
    storage.delete_prefix("chk-1")


def test_a_place_that_cannot_be_looked_at_is_an_error_of_the_storage(tmp_path: Path) -> None:
    """Whoever creates a file handles these; one of the operating system's own ended what asked."""
    with pytest.raises(StorageError, match=r"cannot write .*: File name too long"):
        LocalStorage(str(tmp_path)).create("x" * 300, b"")


def test_a_file_whose_link_was_made_before_the_answer_was_lost_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS asks its server again then, which says that the name is taken: who had created a file was told it had not."""
    link = os.link

    def asked_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", asked_twice)
    storage = LocalStorage(str(tmp_path))
    storage.create("a", b"mine")
    with pytest.raises(StorageAlreadyExists):
        storage.create("a", b"another's")
    assert storage.get("a") == b"mine"
