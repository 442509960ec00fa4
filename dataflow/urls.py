"""URLs whose path may hold any character: names of directories have `?` and `#` as well as others, which would begin a
query or a fragment. Decides nothing about which file system a URL is on."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit


def without_query(url: str) -> str:
    """The URL with the marks of a query and a fragment as characters of its path.

    >>> without_query("s3://bucket/day#1/a?b")
    's3://bucket/day%231/a%3Fb'
    """
    return url.replace("?", "%3F").replace("#", "%23")


def is_file_url(path: str) -> bool:
    """Whether this is a URL of a local path: with three slashes, or with one, as Flink and Hadoop write them.

    >>> [is_file_url(path) for path in ("file:///data", "file:/data", "/data")]
    [True, True, False]
    """
    return path.startswith("file:/")


def is_absolute(path: str) -> bool:
    """Whether a path does not depend on a job's checkpoint directory: a URL, or an absolute path of a file system.

    >>> [is_absolute(path) for path in ("s3://bucket/a", "file:/data/a", "/data/a", "chk-1")]
    [True, True, True, False]
    """
    return "://" in path or path.startswith("/") or is_file_url(path)


def path_of_file_url(url: str) -> str:
    """The path on this machine of a URL that begins with `file:`.

    >>> path_of_file_url("file:///data/day#1/a%20b")
    '/data/day#1/a b'
    """
    return unquote(urlsplit(without_query(url)).path)
