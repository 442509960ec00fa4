"""One suite for every implementation of the storage port: in memory, local directory, HDFS's semantics, real S3."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from snapline.runtime.storage.hadoop_storage import HadoopStorage
from snapline.runtime.storage.local_storage import LocalStorage
from snapline.runtime.storage.memory_storage import MemoryStorage, named_memory_storage
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.storage_port import (
    ScatterStorage,
    Storage,
    StorageAlreadyExists,
    StorageError,
    StorageNotFound,
    put_parts,
)
from snapline.runtime.storage.storage_probe import probe_storage
from tests.services.s3 import BUCKET


class RefusingMove(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow is untyped
    """A file system whose move refuses an existing target, as HDFS's does."""

    def __init__(self) -> None:
        self.local = fs.LocalFileSystem()
        self.lock = threading.Lock()

    def move(self, src: str, dest: str) -> None:
        with self.lock:  # the name node orders renames
            if self.local.get_file_info(dest).type != fs.FileType.NotFound:
                raise OSError(f"rename of {src}: target exists")
            self.local.move(src, dest)

    def get_type_name(self) -> str:
        return "hdfs-like"

    def get_file_info(self, paths: list[str]) -> Any:
        return self.local.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self.local.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.local.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.local.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.local.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self.local.delete_file(path)

    def copy_file(self, src: str, dest: str) -> None:
        self.local.copy_file(src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self.local.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self.local.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self.local.open_output_stream(path, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return self.local.open_append_stream(path, metadata=metadata)

    def normalize_path(self, path: str) -> str:
        return path


@pytest.fixture(
    params=["memory", "local", "hdfs-like", pytest.param("s3", marks=pytest.mark.s3)],
)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStorage("contract")
    elif request.param == "local":
        yield LocalStorage(str(tmp_path / "not" / "there yet"))
    elif request.param == "hdfs-like":
        yield HadoopStorage(fs.PyFileSystem(RefusingMove()), str(tmp_path / "hdfs"), "hdfs://name-node/hdfs")
    else:
        server = request.getfixturevalue("s3_server")
        yield open_storage(f"s3://{BUCKET}/{secrets.token_hex(6)}", server.configuration)


def test_what_was_put_can_be_read(storage: Storage) -> None:
    """Put and get are inverse, also of nothing, and put replaces."""
    storage.put("chk-1/a", b"one")
    storage.put("chk-1/a", b"two")
    storage.put("chk-1/empty", b"")

    assert storage.get("chk-1/a") == b"two"
    assert storage.get("chk-1/empty") == b""


def test_create_refuses_a_path_that_is_taken(storage: Storage) -> None:
    """A second create raises and leaves the first content; after a delete the path is free again."""
    storage.create("chk-1/_metadata", b"first")

    with pytest.raises(StorageAlreadyExists, match="chk-1/_metadata"):
        storage.create("chk-1/_metadata", b"second")
    assert storage.get("chk-1/_metadata") == b"first"

    storage.delete("chk-1/_metadata")
    storage.create("chk-1/_metadata", b"third")
    assert storage.get("chk-1/_metadata") == b"third"


def test_of_many_creators_one_wins(storage: Storage) -> None:
    """Conditional create holds under a race: exactly one succeeds, and its content stays."""
    won: list[int] = []
    lost: list[int] = []
    start = threading.Barrier(8)

    def create(number: int) -> None:
        start.wait()
        try:
            storage.create("raced", str(number).encode())
            won.append(number)
        except StorageAlreadyExists:
            lost.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 1 and len(lost) == 7
    assert storage.get("raced") == str(won[0]).encode()
    assert storage.list("") == [("raced", 1)]


def test_ranges(storage: Storage) -> None:
    """A range is exactly the bytes asked for; beyond the end is an error, of nothing is nothing."""
    storage.put("file", bytes(range(256)) * 300)

    assert storage.get_range("file", 0, 3) == b"\0\1\2"
    assert storage.get_range("file", 256 * 299 + 250, 6) == bytes(range(250, 256))
    assert storage.get_range("file", 7, 0) == b""
    with pytest.raises(StorageError, match="shorter"):
        storage.get_range("file", 256 * 300 - 2, 3)


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.get("missing/file"),
        lambda s: s.get_range("missing/file", 0, 1),
        lambda s: s.rename("missing/file", "elsewhere"),
    ],
    ids=["get", "get_range", "rename"],
)
def test_reading_what_is_not_there(storage: Storage, read: Callable[[Storage], object]) -> None:
    """Reads of a missing path raise StorageNotFound that names it."""
    with pytest.raises(StorageNotFound, match="missing/file"):
        read(storage)
    assert not storage.exists("missing/file")
    assert not storage.exists("elsewhere")


def test_listing_is_by_directory_sorted_with_sizes(storage: Storage) -> None:
    """`chk-1` does not list `chk-10`; sub-directories are included; what is not there lists nothing."""
    for path in ("chk-10/a", "chk-1/b", "chk-1/shared/c", "chk-1/a", "top"):
        storage.put(path, path.encode())

    assert storage.list("chk-1") == [("chk-1/a", 7), ("chk-1/b", 7), ("chk-1/shared/c", 14)]
    assert storage.list("chk-1/") == storage.list("chk-1")
    assert [path for path, _ in storage.list("")] == ["chk-1/a", "chk-1/b", "chk-1/shared/c", "chk-10/a", "top"]
    assert storage.list("chk-2") == []


def test_exists_is_about_files(storage: Storage) -> None:
    """A directory is not a file."""
    storage.put("directory/file", b"x")

    assert storage.exists("directory/file")
    assert not storage.exists("directory")
    assert not storage.exists("directory/file/below")


def test_deleting(storage: Storage) -> None:
    """Delete and delete_prefix remove what they name, nothing else, and do not mind what is gone."""
    for path in ("chk-1/a", "chk-1/shared/b", "chk-10/a", "chk-2/a"):
        storage.put(path, b"x")

    storage.delete("chk-2/a")
    storage.delete("chk-2/a")
    storage.delete_prefix("chk-1")
    storage.delete_prefix("chk-1")
    storage.delete_prefix("never/was")

    assert [path for path, _ in storage.list("")] == ["chk-10/a"]
    storage.put("chk-1/again", b"y")
    assert storage.get("chk-1/again") == b"y"


def test_rename_moves_and_replaces(storage: Storage) -> None:
    """The target has the source's content, the source is gone, other files stay."""
    storage.put("staging/a", b"new")
    storage.put("final/a", b"old")

    storage.rename("staging/a", "final/a")

    assert storage.get("final/a") == b"new"
    assert storage.list("") == [("final/a", 3)]

    storage.rename("final/a", "another/directory/a")
    assert storage.list("") == [("another/directory/a", 3)]


def test_parts_are_one_file(storage: Storage) -> None:
    """Any buffers, in order, empty ones too."""
    assert isinstance(storage, ScatterStorage)
    big = bytes(range(256)) * 40_000

    put_parts(storage, "segment", [b"", memoryview(big), bytearray(b"middle"), big, b""])

    assert storage.get("segment") == big + b"middle" + big
    put_parts(storage, "many", [b"%d," % n for n in range(3000)])
    assert storage.get("many") == b"".join(b"%d," % n for n in range(3000))


def test_a_large_file_comes_back_whole(storage: Storage) -> None:
    """24 MB, which an object store takes in several parts."""
    content = secrets.token_bytes(1 << 20) * 24

    put_parts(storage, "large", [content])

    assert storage.list("large") == [] and storage.list("") == [("large", len(content))]
    assert storage.get_range("large", (20 << 20) - 5, 10) == content[(20 << 20) - 5 : (20 << 20) + 5]
    assert storage.get("large") == content


@pytest.mark.parametrize("path", ["", "/", "/etc/passwd", "../outside", "a/../../b", "a//b", "./a"])
def test_paths_stay_below_the_base(storage: Storage, path: str) -> None:
    """What is absolute, empty or climbs is refused, everywhere alike."""
    with pytest.raises(StorageError, match="not a path below"):
        storage.put(path, b"x")
    with pytest.raises(StorageError, match="not a path below"):
        storage.get(path)


def test_odd_names(storage: Storage) -> None:
    """Spaces, dots, percent signs and other alphabets are ordinary characters."""
    names = ["with space", "dots...and-dashes_", "100%", "größe", "a=b,c+d"]
    for name in names:
        storage.put(f"odd/{name}", name.encode())

    assert sorted(path for path, _ in storage.list("odd")) == sorted(f"odd/{name}" for name in names)
    for name in names:
        assert storage.get(f"odd/{name}") == name.encode()


def test_the_probe_accepts_a_good_store_and_leaves_nothing(storage: Storage) -> None:
    """Every store that passes this suite passes the probe."""
    probe_storage(storage)

    assert storage.list("") == []


def test_the_url_opens_the_same_store(storage: Storage, request: pytest.FixtureRequest) -> None:
    """What one process writes, another finds through the URL."""
    if isinstance(storage, HadoopStorage):
        pytest.skip("there is no name node here")
    storage.put("file", b"x")
    if isinstance(storage, MemoryStorage):
        named = named_memory_storage("by-url")
        named.put("file", b"x")
        assert open_storage("memory://by-url").get("file") == b"x"
        return
    is_s3 = storage.url.startswith("s3:")
    configuration = request.getfixturevalue("s3_server").configuration if is_s3 else {}

    assert open_storage(storage.url, configuration).get("file") == b"x"
