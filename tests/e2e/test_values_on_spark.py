"""Rows and jobs as values on Spark: what a program collects, shows and holds in its hand while TaskManagers run in
Spark's workers."""

from __future__ import annotations

import pytest

from tests.e2e.programs import ROOT, python, run

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = """
import snapline as sl
from pyspark.sql import SparkSession
from snapline.connectors import DiscardingSink

spark = SparkSession.builder.master("local[4]").getOrCreate()
env = sl.StreamExecutionEnvironment.get_execution_environment()
env.checkpointing.interval(200).directory("checkpoints")
stream = env.from_collection([{"k": n % 2, "v": n} for n in range(10)], uid="rows").filter(sl.col("v") > 3)

frame = stream.execute_and_collect().to_spark()
print(sorted(row.v for row in frame.collect()), dict(frame.dtypes))
stream.show(1)

endless = sl.StreamExecutionEnvironment.get_execution_environment()
endless.configure("taskmanager.instances", 2).checkpointing.interval(200).directory("checkpoints")
numbers = endless.from_source(sl.GeneratorSource(keys=3, rows_per_second=500, batch_rows=10), uid="numbers")
numbers.key_by("key").running_aggregate(uid="counts", n=sl.count()).sink_to(DiscardingSink(), uid="out")
with numbers.execute_and_collect(limit=7) as rows:
    print(len(list(rows)))
with endless.execute_async("endless") as job:
    while job.status != "RUNNING" or len(job.checkpoints) < 2:
        assert not job.has_ended
    print(job.tap("numbers", rows=2).column_names, len(job.metrics().tasks) > 0)
    job.rescale(2)
    print("savepoint" in job.savepoint("savepoints"))
print(job.status)
"""
TWO_JOBS = """
import snapline as sl
from snapline.connectors import DiscardingSink


def started(name, rows):
    env = sl.StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    numbers = env.from_source(sl.GeneratorSource(rows=rows, keys=5, rows_per_second=500), uid="numbers")
    numbers.sink_to(DiscardingSink(), uid="out")
    return env.execute_async(name)


short, long = started("short", 500), started("long", 5_000)
print(short.wait().status, long.has_ended)
print(long.wait().status)
print(started("after them", 100).wait().status)
"""
SAID = """[4, 5, 6, 7, 8, 9] {'k': 'bigint', 'v': 'bigint'}
k      v
int64  int64
0      4
...
7
['key', 'value'] True
True
CANCELED
"""


def test_rows_and_jobs_of_a_program(tmp_path):
    """A DataFrame, a table, rows of a stream without end, and a job that is looked into, rescaled and saved."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run(python("program.py"), tmp_path, 350, PYTHONPATH=str(ROOT))
    assert done.code == 0, done.err
    assert done.out == SAID, done.err


@pytest.mark.rare
def test_spark_goes_on_until_the_last_job_of_a_program_has_ended(tmp_path):
    """Two jobs at once share the session that the first has started, and it is not stopped with the first."""
    (tmp_path / "program.py").write_text(TWO_JOBS)
    done = run(python("program.py"), tmp_path, 350, PYTHONPATH=str(ROOT), MASTER="local[4]")
    assert done.code == 0, done.err
    assert done.out == "FINISHED False\nFINISHED\nFINISHED\n", done.err
