"""The source of files on a real S3 server: discovery, order, positions, and objects that change."""

from __future__ import annotations

import gzip
import secrets

import pyarrow as pa
import pytest

from snapline.connectors import FileSource, JsonFormat
from snapline.connectors.files.filesystems import locate
from snapline.dataflow.errors import ConnectorError
from tests.services.s3 import BUCKET, S3Server
from tests.unit.connectors.files.test_file_source import drain, found_by, names, open_reader

pytestmark = pytest.mark.s3
SCHEMA = pa.schema([("n", pa.int64())])


def put(server: S3Server, url: str, data: bytes) -> None:
    location = locate(url, server.configuration)
    with location.filesystem.open_output_stream(location.path) as stream:
        stream.write(data)


def lines(start: int, count: int) -> bytes:
    return "".join(f'{{"n": {n}}}\n' for n in range(start, start + count)).encode()


def test_objects_that_appear_and_a_position_inside_of_one(s3_server: S3Server) -> None:
    """A prefix that does not exist yet is followed; each object is read once, also from its middle on."""
    url = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    source = FileSource(
        f"{url}/*.json", JsonFormat(SCHEMA), follow=True, order="path", batch_rows=10,
        storage_options=s3_server.configuration,
    )  # fmt: skip
    assert not source.enumerate_splits()
    assert [] == found_by(source)[0]
    put(s3_server, f"{url}/a.json", lines(0, 25))
    put(s3_server, f"{url}/c.json", gzip.compress(lines(25, 25)))
    first, state = found_by(source)
    put(s3_server, f"{url}/b.json", lines(50, 5))
    put(s3_server, f"{url}/other.txt", b"?")
    second, _ = found_by(source, state)
    assert (["a.json", "c.json"], ["b.json"]) == (names(first), names(second))
    reader = open_reader(source, [*first, *second])
    before = drain(reader, 6)
    after = drain(open_reader(source, reader.snapshot_splits(1)))
    assert list(range(55)) == [row["n"] for row in before + after]


def test_an_object_that_is_written_again_while_it_is_read(s3_server: S3Server) -> None:
    """Its size tells."""
    url = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    put(s3_server, f"{url}/a.json", lines(0, 25))
    source = FileSource(url, JsonFormat(SCHEMA), batch_rows=10, storage_options=s3_server.configuration)
    source.enumerate_splits()
    reader = open_reader(source, found_by(source)[0])
    drain(reader, 1)
    held = reader.snapshot_splits(1)
    put(s3_server, f"{url}/a.json", lines(0, 30))
    with pytest.raises(ConnectorError, match="has changed while it is read: it had"):
        drain(open_reader(source, held))
