"""Which `pyarrow.fs` file system a path or URL of a connector means.

Connectors use pyarrow's file systems, not the storage port of the engine: data files are read and written by pyarrow's
own Parquet code, in the user's buckets, with the user's credentials. Decides how `s3.*` options and the environment
(AWS_*, GOOGLE_*, AZURE_*) are applied, and what an operating system's error means to a user. Opens nothing by itself.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from snapline.dataflow.errors import ConnectorError
from snapline.runtime.absolute_paths import path_of_user

PathLike = str | os.PathLike[str]

S3_SCHEMES = ("s3", "s3a")
S3_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
S3_OPTIONS = {
    f"s3.{name}" for name in ("endpoint", "access-key", "secret-key", "session-token", "region", "allow-http")
}
REFUSALS = ("ACCESS_DENIED", "SIGNATURE_DOES_NOT", "INVALID_ACCESS_KEY", "redentials")
FORBIDDEN = re.compile(r"(status|code)\W{1,3}403\b", re.IGNORECASE)
"""A refusal by its number, which names of files have in them, too."""
SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]*):(.*)", re.IGNORECASE | re.DOTALL)
HOST = re.compile(r"//[^/]*")
NOT_ENCODED = "/:=+,@!$&'()*;~"
CONNECT_TIMEOUT_SECONDS = 5
REQUEST_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Location:
    """A path on a file system."""

    filesystem: Any
    path: str
    prefix: str
    """What is before a path of this file system, or before what follows its root, in a URL; empty for local ones."""
    root: str = ""
    """What all paths here begin with and a URL says in other words, as Azure's `container@account`."""
    query: str | None = None
    """What a URL has behind the path, which is percent-encoded then; None: the path is as it is."""

    @property
    def is_local(self) -> bool:
        """On a mounted file system."""
        return not self.prefix

    @property
    def url(self) -> str:
        """As a user writes it."""
        if self.query is None:
            return self.prefix + self.path
        rest = f"{self.path}/".removeprefix(self.root).rstrip("/")
        return self.prefix + quote(rest, safe=NOT_ENCODED) + self.query

    def at(self, path: str) -> Location:
        """Another path on the same file system."""
        return replace(self, path=path)

    def of_url(self, url: str) -> Location | None:
        """What has this URL; None where that is on another file system."""
        if self.is_local:
            return self.at(url) if url.startswith("/") else None
        if not (url.startswith(self.prefix) and url.endswith(self.query or "")):
            return None
        rest = url[len(self.prefix) : len(url) - len(self.query or "")]
        return self.at(rest if self.query is None else self.root + unquote(rest))


def absolute(path: str | os.PathLike[str]) -> str:
    """A path or URL that means the same in every process: relative and `~` paths are made absolute here. Raises
    ConnectorError for what is none."""
    text = os.fspath(path)
    if not text.strip():
        raise ConnectorError("an empty path; give a file, a directory, a glob or a URL")
    scheme, rest = _scheme_and_rest(text)
    if scheme == "file":
        text = unquote(HOST.sub("", rest, count=1) if rest.startswith("//") else rest)
    if "\0" in text or "\0" in os.fspath(path):
        raise ConnectorError(f"{text!r} is no path: it has a character NUL in it, which no file system takes")
    if scheme != "file" and len(scheme) > 1:
        return text
    return os.path.normpath(path_of_user(text))


def locate(url: str, options: Mapping[str, str]) -> Location:
    """The file system and path of what `absolute` returned. Raises ConnectorError for a scheme that nobody knows."""
    scheme, rest = _scheme_and_rest(url)
    if len(scheme) < 2:
        return Location(fs.LocalFileSystem(), url, "")
    try:
        if scheme in S3_SCHEMES:
            path = rest.removeprefix("//").rstrip("/")
            if not rest.startswith("//") or not path or path.startswith("/"):
                raise ConnectorError(f"{url!r} names no bucket; write {scheme}://bucket/directory")
            return Location(_s3(options), path, f"{scheme}://")
        url = url.replace("#", "%23")
        filesystem, path = fs.FileSystem.from_uri(url)
    except (ValueError, OSError, NotImplementedError) as error:
        raise ConnectorError(f"cannot use {url}: {first_line(error)}") from error
    before, sign, query = url.partition("?")
    return _named(Location(filesystem, path.rstrip("/"), "", query=sign + query), before.rstrip("/"))


def _named(location: Location, url: str) -> Location:
    """With what the URL has before the directories that are in the path, too."""
    said, names = url.split("/"), location.path.split("/")
    common = 0
    while common < min(len(said), len(names)) and unquote(said[-common - 1]) == names[-common - 1]:
        common += 1
    kept = names[: len(names) - common]
    prefix = "/".join([*said[: len(said) - common], ""])
    return replace(location, prefix=prefix, root="/".join([*kept, ""]) if kept else "")


def _scheme_and_rest(text: str) -> tuple[str, str]:
    """The scheme of a URL, and what is behind its colon; no scheme: a path. `?` and `#` are characters of a path like
    others: a glob has the one, and names of files have both."""
    match = SCHEME.match(text)
    return ("", text) if match is None else (match[1].lower(), match[2])


def _s3(options: Mapping[str, str]) -> Any:
    unknown = set(options) - S3_OPTIONS
    if unknown:
        raise ConnectorError(f"unknown storage option {min(unknown)!r}; there are s3.endpoint, s3.access-key, s3.secret-key, "
                             "s3.session-token, s3.region and s3.allow-http")  # fmt: skip
    endpoint = options.get("s3.endpoint") or next(filter(None, map(os.environ.get, S3_ENDPOINT_VARIABLES)), "")
    arguments: dict[str, Any] = {}
    if endpoint:
        scheme, _, address = endpoint.rpartition("://")
        arguments |= {"endpoint_override": address.rstrip("/"), "scheme": scheme or "https"}
    if options.get("s3.access-key"):
        arguments |= {"access_key": options["s3.access-key"], "secret_key": options.get("s3.secret-key", "")}
        if options.get("s3.session-token"):
            arguments["session_token"] = options["s3.session-token"]
    environment_region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return fs.S3FileSystem(
        region=options.get("s3.region") or environment_region or "us-east-1",
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        request_timeout=REQUEST_TIMEOUT_SECONDS,
        **arguments,
    )


def first_line(error: BaseException) -> str:
    """The cause in one line."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def is_refusal(error: BaseException) -> bool:
    """Whether a store says that somebody may not do this."""
    text = str(error)
    return any(sign in text for sign in REFUSALS) or FORBIDDEN.search(text) is not None


def advice(error: BaseException) -> str:
    """What a user can look at."""
    text = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"check that user id {os.geteuid()} has access, on every machine of the cluster"
    if number in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return "something on the way is a file, not a directory; choose another path"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; make room"
    if isinstance(error, (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)):
        return "such values have no form there; convert the column before"
    if "NO_SUCH_BUCKET" in text or "NoSuchBucket" in text:
        return "check that the bucket exists"
    if is_refusal(error):
        return "check the credentials: storage_options s3.access-key and s3.secret-key, or AWS_* in the environment"
    if "NETWORK_CONNECTION" in text or "onnect" in text:
        return "the store does not answer; check the endpoint and the network"
    return "check that it is reachable from every machine of the cluster"
