"""What errors of file systems mean for a user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from snapline.connectors.files.filesystems import Location, absolute, advice, locate
from snapline.connectors.files.output_files import RemoteOutputFiles
from snapline.connectors.iceberg.iceberg_sink import data_directory
from snapline.dataflow.errors import ConnectorError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "for key 'x/.probe-403-26' in bucket 'b': AWS Error NO_SUCH_BUCKET during Put",
            "check that the bucket exists",
        ),
        ("for key 'part-403' in bucket 'b': AWS Error SLOW_DOWN", "check that it is reachable"),
        ("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation", "check the credentials"),
        ("AWS Error ACCESS_DENIED during Put", "check the credentials"),
    ],
)
def test_a_name_with_a_number_in_it_is_no_refusal(text: str, said: str) -> None:
    """The number of a process stood in a name, and the advice was to check the credentials."""
    assert advice(OSError(text)).startswith(said)


@pytest.mark.parametrize("path", ["/tmp/x\0y", "x\0y", "file:///tmp/x%00y", "s3://bucket/x\0y"])
def test_a_path_with_a_nul_is_refused_where_it_is_given(path: str) -> None:
    """It was an "embedded null byte" of Python, or of Arrow, without a path."""
    with pytest.raises(ConnectorError, match=r"x\\x00y' is no path: it has a character NUL in it"):
        absolute(path)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///tmp/x/part-?.csv", "/tmp/x/part-?.csv"),
        ("file:///tmp/x/a%23b.csv", "/tmp/x/a#b.csv"),
        ("file:///tmp/day#1/a.csv", "/tmp/day#1/a.csv"),
        ("file://localhost/tmp/x", "/tmp/x"),
        ("FILE:/tmp/x", "/tmp/x"),
        ("//[a/b", "//[a/b"),
        ("s3://bucket/part-?.csv", "s3://bucket/part-?.csv"),
    ],
)
def test_a_url_is_a_path_to_its_last_character(url: str, path: str) -> None:
    """A glob ended before its `?`, and a name before its `#`."""
    assert absolute(url) == path


@pytest.mark.parametrize("path", ["bucket/part-?.csv", "bucket/day#1/a?b.csv", "bucket/[ab]*.csv", "bucket"])
def test_a_path_in_a_bucket_goes_to_its_last_character(path: str) -> None:
    """A sink of `s3://bucket/day#1` wrote into another directory."""
    options = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key": "any", "s3.secret-key": "any"}
    location = locate(f"s3a://{path}/", options)
    assert (location.path, location.url) == (path, f"s3a://{path}")


@pytest.mark.parametrize("url", ["s3://", "s3:///directory", "s3:bucket/directory"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    """It says what to write instead."""
    with pytest.raises(ConnectorError, match=r"names no bucket; write s3://bucket/directory"):
        locate(url, {})


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("abfs://box@its.dfs.core.windows.net/a/b", "box/a/b"),
        ("abfss://box@its.dfs.core.windows.net/a%20b/", "box/a b"),
        ("abfs://box@its.dfs.core.windows.net", "box"),
        ("gs://anonymous@box/a?endpoint_override=localhost:1&scheme=http", "box/a"),
        ("gs://anonymous@box/day#1", "box/day#1"),
        ("gs://anonymous@box", "box"),
    ],
)
def test_a_file_that_is_found_has_a_url_that_means_it(url: str, directory: str) -> None:
    """A source looked for what it had found in another account, `core.windows.nec`, since a piece of as many letters
    as the path has was cut off the URL."""
    location = locate(absolute(url), {})
    assert location.path == directory
    found = location.at(f"{directory}/day=1/no #1?.csv")

    again = locate(found.url, {})

    assert (again.path, again.url) == (found.path, found.url)
    assert again.filesystem == location.filesystem
    assert location.of_url(found.url) == found
    assert location.of_url("s3://box/a.csv") is None


class LikeHdfs:
    """A file system in which directories are more than the beginnings of names, and other processes write as well."""

    type_name = "hdfs"

    def __init__(self) -> None:
        self._local = fs.LocalFileSystem()
        self.meanwhile: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def get_file_info(self, what: Any) -> Any:
        found = self._local.get_file_info(what)
        self.meanwhile()
        return found


def test_a_file_is_moved_into_a_partition_that_is_not_there_yet(tmp_path: Path) -> None:
    """HDFS makes no directory for it, so that no checkpoint of a sink with partitions was ever committed there."""
    files = RemoteOutputFiles(Location(LikeHdfs(), str(tmp_path), "hdfs://"))
    (tmp_path / "staged").write_text("x")
    target = tmp_path / "day=1" / "town=a" / "part-0"
    assert [] == files.publish([(str(tmp_path / "staged"), str(target))])
    assert target.read_text() == "x"


def test_what_another_subtask_stages_meanwhile_stays(tmp_path: Path) -> None:
    """A subtask that ended found the directory empty, and deleted it with what had come into it since."""
    files, staging = LikeHdfs(), tmp_path / "_staging"
    staging.mkdir()
    files.meanwhile = (staging / "of-another").touch
    RemoteOutputFiles(Location(files, str(tmp_path), "hdfs://")).remove_directory_if_empty(str(staging))
    files.meanwhile()
    assert [path.name for path in staging.iterdir()] == ["of-another"]


def test_keys_that_a_catalogue_lends_reach_the_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the token that belongs to them S3 refused them, and those that are said for all its clients were not
    found."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("snapline.connectors.files.filesystems.fs.S3FileSystem", lambda **said: made.append(said))
    for names in (
        ("s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.region"),
        ("client.access-key-id", "client.secret-access-key", "client.session-token", "client.region"),
    ):
        lent = dict(zip(names, ("key", "secret", "token", "eu-west-1"), strict=True))
        table = SimpleNamespace(
            properties={}, location=lambda: "s3://bucket/table", io=SimpleNamespace(properties=lent)
        )
        directory, options = data_directory(table)
        locate(directory, options)
    assert directory == "s3://bucket/table/data"
    for said in made:
        keys = [said[name] for name in ("access_key", "secret_key", "session_token", "region")]
        assert keys == ["key", "secret", "token", "eu-west-1"]
    assert len(made) == 2
