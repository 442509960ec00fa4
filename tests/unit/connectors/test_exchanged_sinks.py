"""A sink that takes the place of one of another kind, under its uid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snapline.connectors import FileSink, JsonFormat, KafkaSink, RedisSink
from snapline.connectors.kafka.kafka_sink import KafkaCommitter
from snapline.connectors.postgres.postgres_sink import PostgresCommitter, PostgresSink, TransactionOf
from snapline.dataflow.api.connector_api import Committable, GlobalCommittable
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

FORMAT = JsonFormat(pa.schema([("n", pa.int64())]))
FOREIGN = Committable({"rows": "of another kind of sink", "checkpoint_id": 7})


def committer_of(kind: str, directory: Path) -> Any:
    if kind == "kafka":
        return KafkaCommitter(KafkaSink("t", bootstrap_servers="127.0.0.1:1", format=FORMAT), Place())
    if kind == "redis":
        sink = RedisSink("k", url="redis://127.0.0.1:1/0", value="v", guarantee="exactly_once")
        return sink.create_committer(Place(operator_uid="out"))
    if kind == "postgres":
        committer = PostgresCommitter.__new__(PostgresCommitter)
        committer._sink = PostgresSink("t", dsn="host=x", key=("k",))
        committer._own = TransactionOf("job", "out", 0, 1, "ab")
        return committer
    return FileSink(str(directory / "out"), format=FORMAT).create_committer(Place())


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("kind", ["kafka", "redis", "postgres", "files"])
def test_what_the_other_sink_has_pre_committed_is_not_forgotten(tmp_path: Path, kind: str, end: str) -> None:
    """A job that was started from a savepoint with another kind of sink took the rows of the last checkpoint for
    nothing at all, and they never appeared; notes of what is to be swept are none."""
    do = getattr(committer_of(kind, tmp_path), end)
    with pytest.raises(ConnectorError, match=r"another kind of sink has pre-committed under this uid, .* another uid"):
        do([FOREIGN])


def test_files_that_are_put_together_are_not_taken_for_those_of_another_sink(tmp_path: Path) -> None:
    """The one committer of a FileSink, which took the place of a table, left out what the table had not had yet."""
    committer = FileSink(str(tmp_path / "out"), format=FORMAT, compact_below=9).create_global_committer(Place())
    with pytest.raises(ConnectorError, match="another kind of sink has pre-committed under this uid"):
        committer.commit(GlobalCommittable("job", "out", 7, (FOREIGN,)))
    committer.close()


def test_a_note_of_what_is_to_be_swept_does_not_keep_a_job_from_starting(tmp_path: Path) -> None:
    """A RedisSink in place of a FileSink ended in `KeyError: 'marker'`, although no row was left to be committed."""
    committer_of("redis", tmp_path).commit([Committable({"sweep": "0-ab", "subtask": 0, "parallelism": 1})])
