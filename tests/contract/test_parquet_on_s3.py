"""The Parquet connectors on a real S3 server: exactly once there, too."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from snapline.connectors.files.filesystems import locate
from snapline.connectors.parquet import ParquetSink, ParquetSource
from snapline.dataflow.api.connector_api import Committable, InputStatus
from snapline.dataflow.errors import ConnectorError
from tests.services.s3 import BUCKET, S3Server
from tests.unit.connectors.parquet.places import Place

pytestmark = pytest.mark.s3


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def objects(server: S3Server, url: str) -> list[str]:
    location = locate(url, server.configuration)
    infos = location.filesystem.get_file_info(fs.FileSelector(location.path, recursive=True, allow_not_found=True))
    return sorted(info.path.removeprefix(location.path + "/") for info in infos if info.type == fs.FileType.File)


def read(server: S3Server, url: str) -> list[int]:
    location = locate(url, server.configuration)
    found: list[int] = []
    for name in objects(server, url):
        if not name.startswith("_"):
            found += pq.read_table(f"{location.path}/{name}", filesystem=location.filesystem)["n"].to_pylist()
    return sorted(found)


def write(sink: ParquetSink, place: Place, checkpoint_id: int, *values: int) -> Sequence[Committable]:
    """Write and pre-commit in a process that then dies."""
    writer = sink.create_writer(place, ())
    writer.write(numbers(*values))
    return writer.prepare_commit(checkpoint_id)


def test_two_phases_a_lost_attempt_and_a_repeated_commit(s3_server: S3Server) -> None:
    """Pre-committed objects are hidden; a restore commits its own once, and the next checkpoint sweeps the orphans."""
    url = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    sink = ParquetSink(url, storage_options=s3_server.configuration)
    sink.validate()
    first, second = Place(), Place(attempt_number=1, execution_attempt="second")
    writer = sink.create_writer(first, ())
    writer.write(numbers(1, 2))
    restored = writer.prepare_commit(1)
    writer.write(numbers(3, 4))
    writer.prepare_commit(2)  # this checkpoint never completes
    assert read(s3_server, url) == []

    committer = sink.create_committer(second)
    committer.commit(restored)
    committer.commit(restored)
    committer.clean_up(restored)
    assert read(s3_server, url) == [1, 2]
    committer.commit(write(sink, second, 3, 3, 4, 5))
    committer.close()

    assert read(s3_server, url) == [1, 2, 3, 4, 5]
    assert [name for name in objects(s3_server, url) if name.startswith("_")] == []


def test_a_commit_cut_short_between_copy_and_delete(s3_server: S3Server) -> None:
    """Both objects are there; the repeated commit leaves one."""
    url = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    sink = ParquetSink(url, storage_options=s3_server.configuration)
    committables = write(sink, Place(), 1, 1, 2)
    location = locate(url, s3_server.configuration)
    location.filesystem.copy_file(committables[0].data["staged"], committables[0].data["target"])

    sink.create_committer(Place(attempt_number=1, execution_attempt="b")).commit(committables)

    assert read(s3_server, url) == [1, 2]
    assert [name for name in objects(s3_server, url) if name.startswith("_")] == []


def test_reading_files_and_going_on_after_a_restore(s3_server: S3Server) -> None:
    """A prefix as a directory, a glob, positions inside row groups."""
    url = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    location = locate(url, s3_server.configuration)
    for name, start in (("a", 0), ("b", 100)):
        table = pa.table({"n": pa.array(range(start, start + 100), pa.int64())})
        pq.write_table(table, f"{location.path}/{name}.parquet", filesystem=location.filesystem, row_group_size=40)
    source = ParquetSource(url, batch_rows=30, storage_options=s3_server.configuration)
    splits = source.enumerate_splits()
    reader = source.create_reader(Place())
    reader.add_splits(splits)
    batches = [reader.poll_next(0).batch for _ in range(4)]
    snapshot = reader.snapshot_splits(1)

    restored = source.create_reader(Place())
    restored.add_splits(snapshot)
    while (polled := restored.poll_next(0)).status is not InputStatus.END_OF_INPUT:
        batches.append(polled.batch)

    assert [n for batch in batches if batch is not None for n in batch["n"].to_pylist()] == list(range(200))
    glob = ParquetSource(f"{url}/b*.parquet", storage_options=s3_server.configuration)
    assert sum(split.description["rows"] for split in glob.enumerate_splits()) == 100


def test_wrong_places_and_credentials(s3_server: S3Server) -> None:
    """One line that names what to look at."""
    options = s3_server.configuration
    with pytest.raises(ConnectorError, match="there is no file or directory s3://"):
        ParquetSource(f"s3://{BUCKET}/nothing/here.parquet", storage_options=options).enumerate_splits()
    with pytest.raises(
        ConnectorError, match=r"cannot write into s3://no-such-bucket/x: .*check that the bucket exists"
    ):
        ParquetSink("s3://no-such-bucket/x", storage_options=options).validate()
    wrong = {**options, "s3.secret-key": "mistaken"}
    with pytest.raises(ConnectorError, match="check the credentials") as refused:
        ParquetSink(f"s3://{BUCKET}/x", storage_options=wrong).validate()
    assert "mistaken" not in str(refused.value)
    with pytest.raises(ConnectorError, match=r"unknown storage option 's3.acess-key'"):
        ParquetSink(f"s3://{BUCKET}/x", storage_options={"s3.acess-key": "x"}).validate()
