"""Iceberg tables on a real S3 server, as a sink and as a source; the catalogue is a database."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from snapline.connectors import IcebergSink, IcebergSource
from snapline.dataflow.api.connector_api import GlobalCommittable
from snapline.dataflow.errors import ConnectorError
from tests.services.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.unit.connectors.delta.test_delta_source import Job
from tests.unit.connectors.parquet.places import Place

pytestmark = [pytest.mark.s3, pytest.mark.leaks("pyiceberg keeps its threads for the whole process")]


def test_a_checkpoint_is_a_snapshot_on_s3_and_a_source_follows(s3_server: S3Server, tmp_path: Path) -> None:
    """Also when two processes commit it, and when it comes again; wrong credentials are refused at submission."""
    catalog = {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{BUCKET}/{secrets.token_hex(4)}",
        "s3.endpoint": s3_server.endpoint, "s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY,
        "s3.region": "us-east-1",
    }  # fmt: skip
    load_catalog("default", **catalog).create_namespace("shop")
    sink = IcebergSink("shop.rows", catalog=catalog, partition_by=["shop"])
    sink.validate()
    two = [sink.create_global_committer(Place()) for _ in range(2)]
    job = None
    for checkpoint_id in (1, 2):
        writer = sink.create_writer(Place(), ())
        writer.write(pa.RecordBatch.from_pydict({"n": [checkpoint_id], "shop": ["a/b"]}))
        due = GlobalCommittable("job", "uid", checkpoint_id, tuple(writer.prepare_commit(checkpoint_id)))
        writer.close()
        for committer in two:
            committer.commit(due)
        job = job or Job(IcebergSource("shop.rows", catalog=catalog, follow=True))
        job.look()
        assert job.read() == [{"n": checkpoint_id, "shop": "a/b"}]
    for committer in two:
        committer.close()
    table = load_catalog("default", **catalog).load_table("shop.rows")
    assert len(table.snapshots()) == 2
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [1, 2]

    wrong = {**catalog, "s3.secret-access-key": "wrong"}
    with pytest.raises(ConnectorError, match="check the credentials") as refusal:
        IcebergSink("shop.rows", catalog=wrong).validate()
    assert "\n" not in str(refusal.value)
