"""The sink into Delta tables on a real S3 server: conditional writes make a commit there, too."""

from __future__ import annotations

import secrets

import deltalake
import pyarrow as pa
import pytest

from snapline.connectors import DeltaSink, DeltaSource
from snapline.connectors.delta.delta_table import library_options, require_conditional_writes
from snapline.dataflow.api.connector_api import GlobalCommittable
from snapline.dataflow.errors import ConnectorError
from snapline.runtime.storage.object_storage import ObjectStorage, open_storage
from tests.services.s3 import BUCKET, S3Server
from tests.unit.connectors.delta.test_delta_source import Job
from tests.unit.connectors.parquet.places import Place

pytestmark = pytest.mark.s3


def test_a_checkpoint_is_a_version_on_s3(s3_server: S3Server) -> None:
    """Also when two processes commit it, and when it comes again."""
    url = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    sink = DeltaSink(url, partition_by=["shop"], storage_options=s3_server.configuration)
    sink.validate()
    two = [sink.create_global_committer(Place()) for _ in range(2)]
    for checkpoint_id in (1, 2):
        writer = sink.create_writer(Place(), ())
        writer.write(pa.RecordBatch.from_pydict({"n": [checkpoint_id, 0], "shop": ["a/b", None]}))
        due = GlobalCommittable("job", "uid", checkpoint_id, tuple(writer.prepare_commit(checkpoint_id)))
        for committer in two:
            committer.commit(due)
    table = deltalake.DeltaTable(url, storage_options=library_options(s3_server.configuration))
    assert table.version() == 2
    found = sorted((row["n"], row["shop"]) for row in table.to_pyarrow_table().to_pylist())
    assert found == [(0, None), (0, None), (1, "a/b"), (2, "a/b")]


def test_wrong_credentials_and_a_missing_bucket_are_refused_at_submission(s3_server: S3Server) -> None:
    """In one line, with what to look at."""
    options = s3_server.configuration
    with pytest.raises(ConnectorError, match="check the credentials"):
        DeltaSink(f"s3://{BUCKET}/x", storage_options={**options, "s3.secret-key": "wrong"}).validate()
    with pytest.raises(ConnectorError, match="check that the bucket exists"):
        DeltaSink("s3://no-such-bucket/x", storage_options=options).validate()


def test_a_store_that_ignores_conditional_writes_is_refused_at_submission(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line; two commits of one version would both succeed there. Nothing of the probe stays."""
    url = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    sink = DeltaSink(url, storage_options=s3_server.configuration)
    sink.validate()
    monkeypatch.setattr(ObjectStorage, "create", ObjectStorage.put)
    with pytest.raises(ConnectorError, match="the store ignores conditional writes") as refusal:
        sink.validate()
    assert "\n" not in str(refusal.value)
    with_table_of_locks = {**s3_server.configuration, "AWS_S3_LOCKING_PROVIDER": "dynamodb"}
    require_conditional_writes(url, with_table_of_locks)
    assert [name for name, _ in open_storage(url, s3_server.configuration).list("") if name] == []


def test_a_table_on_s3_is_a_source(s3_server: S3Server) -> None:
    """The rows of a version, and what a checkpoint adds later, with the values of partitions."""
    url = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    sink = DeltaSink(url, partition_by=["shop"], storage_options=s3_server.configuration)

    def commit(checkpoint_id: int) -> None:
        writer = sink.create_writer(Place(), ())
        writer.write(pa.RecordBatch.from_pydict({"n": [checkpoint_id], "shop": ["a b/c"]}))
        due = GlobalCommittable("job", "uid", checkpoint_id, tuple(writer.prepare_commit(checkpoint_id)))
        sink.create_global_committer(Place()).commit(due)

    commit(1)
    job = Job(DeltaSource(url, follow=True, storage_options=s3_server.configuration))
    job.look()
    assert job.read() == [{"n": 1, "shop": "a b/c"}]
    commit(2)
    job.look()
    assert job.read() == [{"n": 2, "shop": "a b/c"}]
