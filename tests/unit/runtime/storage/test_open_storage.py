"""Which adapter a URL means, and what object stores' errors mean to a user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from snapline.dataflow.snapshot.program_state import located
from snapline.runtime.storage.hadoop_storage import HadoopStorage
from snapline.runtime.storage.local_storage import LocalStorage
from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.object_storage import ObjectStorage, open_storage
from snapline.runtime.storage.storage_port import StorageError
from snapline.runtime.storage.storage_probe import probe_storage


def test_paths_and_file_urls_are_local(tmp_path: Path) -> None:
    """With and without scheme, with escapes, they are one directory."""
    (tmp_path / "a b").mkdir()
    for url in (f"{tmp_path}/a b", f"file://{tmp_path}/a%20b", f"file:{tmp_path}/a%20b"):
        storage = open_storage(url)
        assert isinstance(storage, LocalStorage)
        assert storage.url == f"file://{tmp_path}/a%20b"


def test_a_mark_in_a_url_is_a_character_of_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was behind it was lost, so that all checkpoints below one directory were one."""
    monkeypatch.setattr("pyarrow.fs.HadoopFileSystem", lambda *arguments, **keywords: None)
    for name in ("day#1/chk-1", "day?1/chk-1"):
        open_storage(f"file://{tmp_path}/{name}").put("_metadata", b"")
        assert (tmp_path / name / "_metadata").is_file()
        assert located(f"file://{tmp_path}/{name}", "") == f"{tmp_path}/{name}"
        storage: Any = open_storage(f"s3://bucket/{name}", {"s3.region": "us-east-1"})
        assert storage._store.prefix == name
        storage = open_storage(f"hdfs://name-node/{name}")
        assert storage._base == f"/{name}"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "set execution.checkpointing.dir"),
        ("hdfs://name-node:80x0/x", "'hdfs://name-node:80x0/x' names no port of a name node"),
        ("ftp://host/x", "unknown kind of storage in 'ftp://host/x'; a path, or one of file://, s3://"),
        ("file://host/x", "three slashes"),
        ("s3:///x", "names no bucket"),
    ],
)
def test_a_url_that_nobody_understands(url: str, message: str) -> None:
    """One line that says what to write instead."""
    with pytest.raises(StorageError, match=message):
        open_storage(url)


def test_hdfs_without_a_hadoop_client_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library libhdfs is not part of pyarrow."""
    from pyarrow import fs

    def missing(*arguments: object, **keywords: object) -> None:
        raise OSError("Unable to load libhdfs: ./libhdfs.so: cannot open shared object file")

    monkeypatch.setattr(fs, "HadoopFileSystem", missing)
    with pytest.raises(StorageError, match="needs libhdfs and a Hadoop client"):
        HadoopStorage.connect("hdfs://name-node:8020/checkpoints")


def test_a_server_that_is_not_there() -> None:
    """Refused connections point to the endpoint and the network."""
    storage = open_storage(
        "s3://bucket/x", {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key": "a", "s3.secret-key": "b"}
    )

    with pytest.raises(
        StorageError, match=r"cannot read s3://bucket/x/a: the store does not answer; check s3.endpoint"
    ):
        storage.get("a")


def test_missing_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys anywhere, the message names the settings and the variables."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")  # nobody asks a cloud from here
    storage = open_storage("s3://bucket/x", {"s3.endpoint": "http://127.0.0.1:1"})

    with pytest.raises(
        StorageError, match=r"no credentials; set s3.access-key and s3.secret-key, or AWS_ACCESS_KEY_ID"
    ):
        storage.put("a", b"x")


def test_a_store_that_overwrites_instead_of_refusing_fails_the_probe() -> None:
    """Some S3 look-alikes ignore If-None-Match."""

    class Overwriting(MemoryStorage):
        def create(self, path: str, data: bytes) -> None:
            self.put(path, data)

    storage = Overwriting("careless")

    with pytest.raises(StorageError, match="memory://careless ignores conditional create"):
        probe_storage(storage)
    assert storage.list("") == []


def test_a_store_that_mangles_ranges_fails_the_probe() -> None:
    """The message says what was wrong."""

    class Mangling(MemoryStorage):
        def get_range(self, path: str, offset: int, size: int) -> bytes:
            return b"?" * size

    with pytest.raises(StorageError, match="a range read returned other bytes"):
        probe_storage(Mangling())


def test_object_stores_are_not_contacted_before_use() -> None:
    """Opening is free, so that a driver can parse settings without network."""
    storage = open_storage("s3://bucket/x/", {"s3.endpoint": "http://127.0.0.1:1"})

    assert isinstance(storage, ObjectStorage)
    assert storage.url == "s3://bucket/x"
