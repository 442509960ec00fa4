"""Offsets of a reader of committed files: exact whatever order subtasks commit in, and whenever somebody looks."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from snapline.committed_files import NOTHING, CommittedFile, advance, between, committed, missing


def name(subtask: int, checkpoint: int, sequence: int = 0, uid: str = "my-sink") -> str:
    """As ParquetSink names a file."""
    return f"part-{uid}-{subtask:04d}-{checkpoint:06d}-0-0123456789ab-{sequence:04d}.parquet"


def test_names_of_sinks_and_others() -> None:
    """Only files that a sink has committed count, the oldest checkpoint first."""
    names = [name(1, 2), name(0, 10), name(0, 2), "_staging", "notes.parquet", "part-00000-x.snappy.parquet"]
    assert [file.name for file in committed(names)] == [name(0, 2), name(1, 2), name(0, 10)]
    assert CommittedFile.parse(name(3, 1_234_567, 10_001)) is not None


def test_names_of_formats_partitions_and_what_was_put_together() -> None:
    """Each partition has a position of its own, and so has what was put together; the job's id is no part of the
    uid."""
    job = "0123456789abcdef" * 2
    names = [
        f"part-{job}-my-sink-0000-000002-0-ab-0000.jsonl.gz",
        f"shop=a/day=2024-01-01/part-{job}-my-sink-0000-000001-0-ab-0001.orc",
        f"shop=b/part-{job}-my-sink-all-000003.parquet",
        f"other/part-{job}-my-sink-all-000003.parquet",
        f"part-{job}-my-sink-0000-000002-0-ab-0000.arrow",
    ]
    assert [(file.place, file.format, file.sink_uid, file.directory) for file in committed(names)] == [
        (f"shop=a/day=2024-01-01/{job}-my-sink/0", "orc", "my-sink", "shop=a/day=2024-01-01/"),
        (f"{job}-my-sink/0", "json", "my-sink", ""),
        (f"shop=b/{job}-my-sink/all", "parquet", "my-sink", "shop=b/"),
    ]


@given(st.randoms(use_true_random=False))
def test_every_file_is_read_once(chance: Random) -> None:
    """Each subtask commits in the order of checkpoints, all of them in any order together; a reader looks at any
    moment, takes as many as a trigger allows, and asks for the same range again after a crash."""
    waiting = {s: [name(s, c, q) for c in range(1, 5) for q in range(2)] for s in range(3)}
    there: list[str] = []
    offset = NOTHING
    read: list[str] = []
    while any(waiting.values()) or len(read) < len(there):
        if any(waiting.values()) and chance.random() < 0.5:
            subtask = chance.choice([s for s, names in waiting.items() if names])
            there.append(waiting[subtask].pop(0))
            continue
        end = advance(offset, committed(there), chance.choice([None, 1, 3]))
        planned = between(committed(there), offset, end)
        if waiting[0]:
            there.append(waiting[0].pop(0))
        assert between(committed(there), offset, end) == planned
        assert missing(committed(there), end, offset) == []
        read += [file.name for file in planned]
        offset = end
    assert sorted(read) == sorted(there)
    assert len(set(read)) == len(read)


def test_a_file_that_is_gone_is_missed() -> None:
    """The last one of a subtask names the subtask."""
    files = committed([name(0, 1), name(1, 1)])
    end = advance(NOTHING, files)
    assert missing(files[:1], end, NOTHING) == ["my-sink/1"]
    assert missing([], end, end) == []
