"""Committables that somebody has put into a snapshot: no sink ends or deletes what none of its name has written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from snapline.connectors import DeltaSink, JsonFormat, KafkaSink, RedisSink
from snapline.connectors.iceberg.iceberg_sink import require_directory
from snapline.connectors.kafka.kafka_sink import KafkaCommitter
from snapline.connectors.kafka.transactions import Transactions
from snapline.connectors.postgres.postgres_sink import PostgresCommitter, PostgresSink, TransactionOf
from snapline.connectors.tables.table_commits import path_of
from snapline.dataflow.api.connector_api import Committable, GlobalCommittable
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

NAMED = "the snapshot names"
OWN = TransactionOf("job", "out", 0, 1, "ab")


def test_a_table_gives_up_no_file_that_is_not_of_its_data(tmp_path: Path) -> None:
    """Giving up what was written deleted every file that a snapshot named, such as the table's own log."""
    log, victim = tmp_path / "table" / "_delta_log" / "0.json", tmp_path / "part-victim"
    log.parent.mkdir(parents=True)
    own = tmp_path / "table" / "part-own.parquet"
    for each in (log, victim, own):
        each.write_text("precious")
    committer = DeltaSink(str(tmp_path / "table")).create_global_committer(Place())
    for path in ("_delta_log/0.json", "../part-victim", str(victim), "", ".", "n=1/../../part-victim"):
        files = [{"path": own.name, "rows": 1}, {"path": path, "rows": 1}]
        with pytest.raises(ConnectorError, match=NAMED):
            committer.abort(GlobalCommittable("job", "out", 7, (Committable({"files": files}),)))
    assert all(each.exists() for each in (log, victim, own))
    assert path_of("/t", {"path": "n=%2E%2E/part-a.parquet"}) == "/t/n=%2E%2E/part-a.parquet"


def test_a_table_of_iceberg_gives_up_files_of_its_own_directories_only() -> None:
    """Its snapshot names the directory, too: where the table is, or where its settings send data."""
    table: Any = SimpleNamespace(
        location=lambda: "file:///w/t", properties={"write.data.path": "s3://b/d"}, io=SimpleNamespace(properties={})
    )
    for directory in ("/w/t/data", "/w/t", "s3://b/d"):
        require_directory(table, {"directory": directory}, "t")
    for directory in ("/etc", "/w/t2", "/w/t/../x", "s3://b/data", ""):
        with pytest.raises(ConnectorError, match=NAMED):
            require_directory(table, {"directory": directory}, "t")


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_prepared_transaction_of_others_is_not_ended(end: str) -> None:
    """Whoever wrote a snapshot could have any transaction of the server rolled back or committed."""
    ended: list[str] = []
    connection = SimpleNamespace(execute=lambda statement: ended.append(statement.as_string(None)))
    committer = PostgresCommitter.__new__(PostgresCommitter)
    committer._sink, committer._own = PostgresSink("t", dsn="host=x", key=("k",)), OWN
    committer._connection = connection
    do: Callable[[list[Committable]], None] = getattr(committer, end)
    earlier = Committable({"transaction": "snapline:earlier-job:out:3:0:cd:6"})
    for name in (
        "billing-7",
        "snapline:job:other:0:1:ab:7",
        "snapline:job:out:0:1:ab:7'; DROP",
        "snapline:a:b:out:0:1:ab:7",
    ):
        with pytest.raises(ConnectorError, match=NAMED):
            do([earlier, Committable({"transaction": name})])
    assert ended == []
    do([earlier])
    assert len(ended) == 1 and ended[0].endswith("'snapline:earlier-job:out:3:0:cd:6'")


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_of_kafka_of_others_is_not_ended(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """To abort one fences whoever writes under its name, and to commit one shows rows that its job may yet abort."""
    ended: list[str] = []
    monkeypatch.setattr(Transactions, end, lambda self, name, *numbers: ended.append(name))
    sink = KafkaSink("t", bootstrap_servers="127.0.0.1:1", format=JsonFormat(pa.schema([("n", pa.int64())])))
    committer = KafkaCommitter(sink, Place(operator_uid="out"))
    do: Callable[[list[Committable]], None] = getattr(committer, end)

    def named(name: Any) -> Committable:
        numbers = {"producer_id": 4, "producer_epoch": 0, "rows": 2, "checkpoint_id": 7}
        return Committable({"transactional_id": name, **numbers})

    own = named("snapline:earlier:out:0:ab:3")
    for name in ("payments", "snapline:job:other:0:ab:3", "mine:job:out:0:ab:3", "snapline:job:out:0:ab:\u00b2", 7):
        with pytest.raises(ConnectorError, match=NAMED) as refused:
            do([own, named(name)])
        assert f"the transaction {name!r}, which the sink 'out' with the prefix 'snapline'" in str(refused.value)
        assert "\n" not in str(refused.value)
    assert ended == []
    do([Committable({"sweep": "ab", "jobs": []}), own])
    assert ended == ["snapline:earlier:out:0:ab:3"]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_key_of_others_is_not_a_marker(end: str) -> None:
    """The marker of a checkpoint is overwritten: it was any key that the snapshot named. Nobody is connected to."""
    sink = RedisSink("k", url="redis://127.0.0.1:1/0", value="v", guarantee="exactly_once")
    committer: Any = sink.create_committer(Place(operator_uid="out"))
    for marker in ("sessions", "snapline:job:other:0", "snapline:a:b:out:0", "snapline:job:out:0\n"):
        with pytest.raises(ConnectorError, match=NAMED):
            getattr(committer, end)([Committable({"marker": marker, "checkpoint_id": 7, "rows": []})])
    committer.close()


@pytest.mark.parametrize(("known", "was_open"), [(None, True), (b"6", True), (b"7", False)])
def test_what_a_marker_says_is_committed_is_not_aborted(
    monkeypatch: pytest.MonkeyPatch, known: Any, was_open: bool
) -> None:
    """Rows of a checkpoint that is not behind the marker are in the snapshot alone, and are given up with it."""
    sink = RedisSink("k", url="redis://127.0.0.1:1/0", value="v", guarantee="exactly_once")
    committer: Any = sink.create_committer(Place(operator_uid="out"))
    monkeypatch.setattr(committer._client, "get", {"snapline:job:out:0": known}.get)
    assert committer.abort([Committable({"marker": "snapline:job:out:0", "checkpoint_id": 7, "rows": []})]) is was_open
    committer.close()
