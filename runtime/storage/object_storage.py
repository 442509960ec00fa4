"""`open_storage(url)`, and storage in S3, Google Cloud Storage and Azure through obstore.

Decides which adapter a URL means, and what an object store's errors mean to a user. Conditional create is
If-None-Match, which `snapline.runtime.storage.storage_probe` verifies. A rename is a copy and a delete: not atomic, but
the target is never half visible. Credentials come from the `s3.*` settings, else from the environment as the vendor's
own tools read it (AWS_*, GOOGLE_*, AZURE_*). obstore runs its own threads: never open a store in a process that will
fork.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from snapline.dataflow.urls import path_of_file_url, without_query
from snapline.runtime.storage.storage_port import (
    Buffer,
    Storage,
    StorageAlreadyExists,
    StorageError,
    StorageNotFound,
    checked_path,
)

OBJECT_STORE_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
HADOOP_SCHEMES = ("hdfs", "viewfs")

S3_SETTINGS = {
    "s3.endpoint": "endpoint",
    "s3.access-key": "access_key_id",
    "s3.secret-key": "secret_access_key",
    "s3.session-token": "session_token",
    "s3.region": "region",
}
"""Settings of `snapline.dataflow.config` and what obstore calls them."""

S3_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

MULTIPART_FROM_BYTES = 16 << 20
PART_BYTES = 8 << 20
REQUEST_TIMEOUT = timedelta(seconds=60)
CONNECT_TIMEOUT = timedelta(seconds=5)
RETRIES_MAX = 4
RETRY_TIMEOUT = timedelta(seconds=60)


def open_storage(url: str, configuration: Mapping[str, str] | None = None) -> Storage:
    """The storage below a path or URL. Opens no connection yet; raises StorageError for a URL that nobody
    understands."""
    try:
        parts = urlsplit(without_query(url))
    except ValueError as error:
        raise StorageError(f"{url!r} is no path and no URL: {error}") from error
    scheme = parts.scheme.lower()
    if not url.strip():
        raise StorageError("no storage location given; set execution.checkpointing.dir to a directory or URL")
    if scheme in ("", "file"):
        from snapline.runtime.storage.local_storage import LocalStorage

        if parts.netloc not in ("", "localhost"):
            raise StorageError(f"{url} names the host {parts.netloc}; write file:///path with three slashes")
        return LocalStorage(path_of_file_url(url) if scheme else url)
    if scheme == "memory":
        from snapline.runtime.storage.memory_storage import named_memory_storage

        return named_memory_storage(parts.netloc)
    if scheme in OBJECT_STORE_SCHEMES:
        return ObjectStorage.connect(url, configuration or {})
    if scheme in HADOOP_SCHEMES:
        from snapline.runtime.storage.hadoop_storage import HadoopStorage

        return HadoopStorage.connect(url)
    known = ", ".join(f"{each}://" for each in ("file", "s3", "gs", "az", "hdfs"))
    raise StorageError(f"unknown kind of storage in {url!r}; a path, or one of {known}")


class ObjectStorage:
    """Objects below one prefix of a bucket."""

    def __init__(self, store: Any, url: str) -> None:
        self._store = store
        self._url = url.rstrip("/")

    @classmethod
    def connect(cls, url: str, configuration: Mapping[str, str]) -> ObjectStorage:
        """A client for the bucket that the URL names. Raises StorageError for settings that cannot be used."""
        from obstore.store import from_url

        scheme = urlsplit(url).scheme.lower()
        if not urlsplit(url).netloc:
            raise StorageError(f"{url!r} names no bucket; write {scheme}://bucket/directory")
        config: dict[str, Any] = {}
        client: dict[str, Any] = {"timeout": REQUEST_TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
        if scheme in ("s3", "s3a"):
            config = {name: value for key, name in S3_SETTINGS.items() if (value := configuration.get(key, ""))}
            endpoint = config.get("endpoint") or next(filter(None, map(os.environ.get, S3_ENDPOINT_VARIABLES)), "")
            if endpoint.startswith("http://") or configuration.get("s3.allow-http", "").strip().lower() == "true":
                client["allow_http"] = True
        retries = {"max_retries": RETRIES_MAX, "retry_timeout": RETRY_TIMEOUT}
        try:
            # obstore types each vendor's settings apart; which vendor it is, is only known here
            store = from_url(without_query(url), config=config or None, client_options=client, retry_config=retries)  # type: ignore[call-overload]
        except Exception as error:
            raise StorageError(f"cannot use {url}: {_first_line(error)}") from error
        return cls(store, url)

    @property
    def url(self) -> str:
        return self._url

    def create(self, path: str, data: bytes) -> None:
        import obstore

        with self._failures("write", path := checked_path(path)):
            obstore.put(self._store, path, data, mode="create", use_multipart=False)

    def put(self, path: str, data: bytes) -> None:
        self.put_parts(path, (data,))

    def put_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        import obstore

        size = sum(memoryview(part).nbytes for part in parts)
        joined: Any = parts[0] if len(parts) == 1 else b"".join(parts)
        with self._failures("write", path := checked_path(path)):
            large = size >= MULTIPART_FROM_BYTES
            obstore.put(self._store, path, joined, use_multipart=large, chunk_size=PART_BYTES)

    def get(self, path: str) -> bytes:
        import obstore

        with self._failures("read", path := checked_path(path)):
            return bytes(obstore.get(self._store, path).bytes())

    def get_range(self, path: str, offset: int, size: int) -> bytes:
        import obstore

        with self._failures("read", path := checked_path(path)):
            if size == 0:  # which HTTP cannot ask for
                obstore.head(self._store, path)
                return b""
            data = bytes(obstore.get_range(self._store, path, start=offset, length=size))
        if len(data) < size:
            raise StorageError(f"{self._url}/{path} is shorter than expected: {offset + size} bytes wanted")
        return data

    def exists(self, path: str) -> bool:
        import obstore

        with self._failures("look for", path := checked_path(path)):
            try:
                obstore.head(self._store, path)
            except FileNotFoundError as error:
                if _is_missing_bucket(error):
                    raise
                return False
            return True

    def list(self, prefix: str) -> list[tuple[str, int]]:
        import obstore

        directory = checked_path(prefix, empty=True)
        with self._failures("list", directory):
            chunks = obstore.list(self._store, f"{directory}/" if directory else None)
            return sorted((meta["path"], meta["size"]) for chunk in chunks for meta in chunk)

    def delete(self, path: str) -> None:
        self._delete_all([checked_path(path)])

    def delete_prefix(self, prefix: str) -> None:
        self._delete_all([path for path, _size in self.list(prefix)])

    def rename(self, source: str, target: str) -> None:
        import obstore

        source, target = checked_path(source), checked_path(target)
        with self._failures("move", source):
            obstore.copy(self._store, source, target)
        if source != target:
            self.delete(source)

    def _delete_all(self, paths: Sequence[str]) -> None:
        import obstore

        if not paths:
            return
        with self._failures("delete", paths[0]):
            try:
                obstore.delete(self._store, list(paths))
            except FileNotFoundError as error:
                if _is_missing_bucket(error):
                    raise
                for path in paths:  # some stores give up at the first that is gone
                    with contextlib.suppress(FileNotFoundError):
                        obstore.delete(self._store, path)

    @contextlib.contextmanager
    def _failures(self, action: str, path: str) -> Iterator[None]:
        """Say what could not be done to which object, and what to look at."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        where = f"{self._url}/{path}"
        try:
            yield
        except (AlreadyExistsError, PreconditionError) as error:
            raise StorageAlreadyExists(f"there is an object at {where} already") from error
        except FileNotFoundError as error:
            if _is_missing_bucket(error):
                raise StorageError(f"cannot {action} {where}: {self._no_bucket()}") from error
            raise StorageNotFound(f"there is no object at {where}") from error
        except (BaseError, ValueError, OSError) as error:
            meaning = self._no_bucket() if _is_missing_bucket(error) else _meaning(error)
            raise StorageError(f"cannot {action} {where}: {meaning}") from error

    def _no_bucket(self) -> str:
        return f"there is no bucket {urlsplit(self._url).netloc!r}; create it first"


def _is_missing_bucket(error: BaseException) -> bool:
    text = str(error)
    return "NoSuchBucket" in text or "ContainerNotFound" in text or "specified bucket does not exist" in text


def _meaning(error: BaseException) -> str:
    """What a user can do about an error of the object store."""
    text = str(error)
    refused = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403 Forbidden", "401 Unauthorized")
    if any(sign in text for sign in refused):
        return "the store refused the credentials; check s3.access-key and s3.secret-key, or AWS_* in the environment"
    if any(sign in text for sign in ("169.254.", "credential", "Credential", "/latest/api/token")):
        return "no credentials; set s3.access-key and s3.secret-key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if any(sign in text for sign in ("error sending request", "onnect", "dns error", "timed out")):
        return f"the store does not answer; check s3.endpoint and the network ({_first_line(error)})"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
