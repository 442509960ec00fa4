"""Of a skewed key, which values lead: from some of the rows that are on their way to it."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from snapline.client import RequestRefused
from snapline.commands.diagnosis_commands import explain_job
from snapline.coordinator.leading_keys import UncountableKeys, UnreadableRows, count_keys, table_of
from snapline.dataflow.columnar.key_partition import assign_to_key_groups
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2
from snapline.tapped import leading_keys


class Skewed:
    """Stands for a client of a coordinator with one job, whose vertex `sums` has a skewed key."""

    def __init__(
        self,
        *batches: list[int],
        name: str = "user",
        has_ended: bool = False,
        silent: int = 0,
        max_parallelism: int = 0,
    ) -> None:
        self._max_parallelism = max_parallelism
        self._batches = batches
        self._name = name
        self._has_ended = has_ended
        self.tapped: list[tuple[str, bool]] = []
        self._silent = silent

    def __enter__(self) -> Skewed:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def resolve_job(self, job: str) -> str:
        return job

    def get_job(self, job_id: str) -> pb.JobDetails:
        vertices = [
            pb.VertexDetails(vertex_id="rows", operator_uids=["read", "cleaned"]),
            pb.VertexDetails(
                vertex_id="sums",
                operator_uids=["sums", "out"],
                max_parallelism=self._max_parallelism,
                subtasks=[
                    pb.SubtaskDetails(subtask_index=0, records_in_per_second=90),
                    pb.SubtaskDetails(subtask_index=1, records_in_per_second=10),
                ],
            ),
        ]
        edges = [job_pb2.JobEdge(source="rows", target="sums", key_columns=["user"])]
        return pb.JobDetails(vertices=vertices, edges=edges)

    def tap(self, job_id: str, uid: str, *, rows: int, max_bytes: int, of_input: bool) -> list[pb.TappedRows]:
        if self._has_ended:
            raise RequestRefused("it is FINISHED")
        self.tapped.append((uid, of_input))
        parts: list[pb.TappedRows] = []
        if len(self.tapped) <= self._silent:
            return parts
        for subtask_index, users in enumerate(self._batches):
            batch = pa.record_batch({self._name: users})
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            parts.append(pb.TappedRows(subtask_index=subtask_index, rows=sink.getvalue().to_pybytes()))
        return parts

    def explain_job(self, job_id: str) -> pb.JobExplanation:
        finding = pb.JobFinding(kind="skew", summary="its keys (user) are skewed", vertex_id="sums")
        return pb.JobExplanation(summary=finding.summary, findings=[finding])


def test_the_most_frequent_keys_of_all_subtasks_are_named() -> None:
    """From the rows that the vertex takes in: those of each subtask count for all that it gets, and it is looked again
    until some have come."""
    client = Skewed([7] * 8 + [1, 2], [3] * 99 + [4], silent=2)
    assert leading_keys(cast(Any, client), "job", "sums") == ["user=7: 72 %", "user=3: 10 %", "user=1: 9 %"]
    assert client.tapped == [("sums", True)] * 3


def test_each_key_is_named_with_its_key_group() -> None:
    """The one that the rows of a key are sent by; an older coordinator does not say how many there are."""
    shown = leading_keys(cast(Any, Skewed([7, 7, 7, 1], [3], max_parallelism=128)), "job", "sums")
    groups = {user: assign_to_key_groups([pa.array([user])], 128)[0] for user in (7, 1, 3)}
    assert shown == [
        f"user=7 (key group {groups[7]}): 68 %",
        f"user=1 (key group {groups[1]}): 22 %",
        f"user=3 (key group {groups[3]}): 10 %",
    ]


def test_where_no_rows_flow_and_where_there_is_no_key_none_is_named() -> None:
    """A key that a function makes is no column of the rows."""
    assert leading_keys(cast(Any, Skewed()), "job", "sums") == []
    assert leading_keys(cast(Any, Skewed([1], name="other")), "job", "sums") == []
    assert leading_keys(cast(Any, Skewed([1])), "job", "rows") == []


@pytest.mark.parametrize(("has_ended", "said"), [(False, "; of the rows now, user=7: 90 %"), (True, "")])
def test_why_says_which_keys_lead(capsys: pytest.CaptureFixture[str], said: str, *, has_ended: bool) -> None:
    """In the line of the skew, of all rows: nobody knows the keys of a subtask that has shown none; a job that ends
    meanwhile leaves the line as it is."""
    target = type("Target", (), {"as_json": False, "client": lambda _: Skewed([7, 7], has_ended=has_ended)})()
    explain_job(cast(Any, target), "job", with_stacks=False)
    assert capsys.readouterr().out == f"skew: its keys (user) are skewed{said}\n"


def test_compressed_rows_are_refused_in_one_line() -> None:
    """By a job's handle, `snapline tap` and `snapline why` alike: 17 KB of a hostile function became 0.7 GB."""
    batch = pa.record_batch({"user": pa.array([7] * 1000)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    part = pb.TappedRows(subtask_index=3, rows=sink.getvalue().to_pybytes())
    why = "rows of subtask 3 cannot be read: the rows are compressed, which no sample is"
    with pytest.raises(UnreadableRows, match=f"^{why}$"):
        table_of([part], 5_000)
    with pytest.raises(UncountableKeys, match=why):
        count_keys(Skewed().get_job("job"), "sums", [part])


def test_all_subtasks_together_have_a_bound() -> None:
    """A text that all rows of a subtask share is counted for each of them, and subtasks are many."""
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 5_000, pa.int8()), pa.array(["x" * 5_000]))
    batch = pa.record_batch({"user": shared})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    parts = [pb.TappedRows(subtask_index=index, rows=sink.getvalue().to_pybytes()) for index in range(3)]
    assert count_keys(Skewed().get_job("job"), "sums", parts[:1])
    with pytest.raises(UncountableKeys, match="the rows are too large"):
        count_keys(Skewed().get_job("job"), "sums", parts)
