"""A cell of the matrix of doors and failures; `python -m tests.e2e.spark_matrix` goes through all, `make soak` too."""

from __future__ import annotations

import pytest

from tests.e2e.programs import ROOT, python, run
from tests.e2e.spark_matrix import DOORS, files_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_file_that_a_killed_executor_has_left_is_no_output(tmp_path):
    """Spark's log of a query's files says which count, also where older entries were put together."""
    for name in ("a", "b", "left"):
        (tmp_path / f"{name}.parquet").touch()
    assert files_of(tmp_path) == [str(tmp_path / f"{name}.parquet") for name in ("a", "b", "left")]
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "_spark_metadata" / ".8.crc").write_bytes(b"crc\x00\xff")
    for log, names in {"9.compact": ["a"], "8": ["a"], "10": ["b"]}.items():
        entries = [f'{{"path":"file://{tmp_path}/{name}.parquet","size":0,"action":"add"}}' for name in names]
        (tmp_path / "_spark_metadata" / log).write_text("\n".join(["v1", *entries]))
    assert files_of(tmp_path) == [str(tmp_path / f"{name}.parquet") for name in ("a", "b")]


@pytest.mark.rare
def test_a_streaming_frame_survives_its_driver(tmp_path):
    """The program that runs the query is killed, and the next one goes on with job and query."""
    matrix = python(
        "-m", "tests.e2e.spark_matrix", "--doors", "stream_in", "--faults", "driver", "--master", "local[4]"
    )
    done = run(matrix, ROOT, 900, TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT))
    assert done.code == 0, done.out + done.err


@pytest.mark.rare
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("door", DOORS)
def test_every_failure(tmp_path, door):
    """Of every process, on executors of their own."""
    matrix = python("-m", "tests.e2e.spark_matrix", "--doors", door)
    done = run(matrix, ROOT, 7200, TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT))
    assert done.code == 0, done.out + done.err


def test_a_function_that_is_killed_three_times_in_each_partition(tmp_path):
    """The example of resumable functions, on fewer flights, without what a busy machine changes."""
    example = python("-m", "examples.resumable", "--rows", "2000", "--interval", "100", "--no-timing")
    done = run(example, ROOT, 600, TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT))
    assert done.code == 0, done.out + done.err
    assert done.out.count("scores EQUAL") == 2
