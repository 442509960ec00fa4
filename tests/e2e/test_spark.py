"""The job of the demo on each kind of Spark, started the way a user starts it; right output, and nothing left
behind."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pyspark
import pytest

from examples.flights_answer import compare_outputs
from tests.e2e.programs import ROOT, marked, python, run, wait_until_gone

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
FINISHED = r"flights: FINISHED in [\d.]+ s: 40,000 rows read, \d+ checkpoints, 0 restarts"
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def assert_right(flights: Path, output: Path) -> None:
    for comparison in compare_outputs(flights, output):
        assert comparison.equal, comparison.differences
        assert comparison.actual_rows > 0


def test_execute_with_nothing_configured(flights, tmp_path):
    """Coordinator and TaskManagers on local[*]; one line is printed, and Spark says nothing."""
    script = ROOT / "examples" / "flights.py"
    done = run(python(script, "--input", flights, "--output", "out"), cwd=tmp_path)
    assert (done.code, done.errors) == (0, [])
    assert re.fullmatch(FINISHED + "\n", done.out)
    assert_right(flights, tmp_path / "out")


def test_ctrl_c_cancels_the_job_and_is_no_alarm(tmp_path):
    """A terminal interrupts all of its processes: status lines and one line of what was done, no warning, and nothing
    of Spark in the directory for what is temporary."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "job.py").write_text(
        "import os, signal, threading\nimport snapline as sl\nfrom snapline.connectors import DiscardingSink\n"
        "env = sl.StreamExecutionEnvironment.get_execution_environment()\n"
        "numbers = env.from_source(sl.GeneratorSource(rows_per_second=1000), uid='numbers')\n"
        "numbers.sink_to(DiscardingSink(), uid='sink')\n"
        "def press_ctrl_c():\n"
        "    while job.status != 'RUNNING':\n        pass\n"
        "    os.killpg(0, signal.SIGINT)\n"
        "job = env.execute_async('endless')\nthreading.Thread(target=press_ctrl_c).start()\njob.wait()\n"
    )
    done = run(python("job.py"), cwd=tmp_path, own_group=True, MASTER="local[1]", TMPDIR=str(tmp_path / "tmp"))

    assert (-signal.SIGINT, "") == (done.code, done.out), done.err
    assert [re.sub(r"\(\w+\)", "(...)", line) for line in done.errors] == [
        "snapline: interrupted: job 'endless' (...) was cancelled"
    ]
    announcements = f"snapline-{os.getuid()}"
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == [announcements]


WRONG_JOB = """
import snapline as sl
from snapline.connectors import DiscardingSink

env = sl.StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(200)
env.from_collection([{"n": 1}], uid="rows").map(lambda row: {"n": 1 // 0}, uid="wrong").sink_to(DiscardingSink(), uid="out")
env.execute("wrong")
"""


def test_a_bug_of_the_users_is_told_once_for_each_time_that_it_fails(tmp_path):
    """The driver tells it; the log of the coordinator beside it, which goes to the same console, does not."""
    (tmp_path / "job.py").write_text(WRONG_JOB)
    done = run(python("job.py"), tmp_path, PYTHONPATH=str(ROOT), MASTER="local[2]")
    assert done.code == 1
    assert done.err.count("failed in process_batch: ZeroDivisionError: ") == 3, done.err
    assert done.err.count("; it restarts\n") == 2, done.err
    assert not [line for line in done.err.splitlines() if line.startswith("{")], done.err


def test_executors_in_processes_of_their_own_and_modules_beside_the_script(flights, tmp_path):
    """local-cluster; functions of a module that no executor can import travel with the job, as do those of one
    named."""
    (tmp_path / "job").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job" / "beside.py").write_text(
        "import pyarrow as pa\n\ndef double(batch):\n"
        "    return pa.record_batch({'n': [2 * n for n in batch.column('n').to_pylist()]})\n"
    )
    (tmp_path / "elsewhere" / "faraway.py").write_text("def large(row):\n    return row['n'] >= 10\n")
    (tmp_path / "job" / "job.py").write_text(
        "import sys\nsys.path.append(sys.argv[1])\nimport beside, faraway\n"
        "from snapline import ParquetSink, StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.add_python_module(faraway).set_parallelism(2)\n"
        "stream = env.from_collection([{'n': n} for n in range(10)])\n"
        "stream.map_batches(beside.double).filter_rows(faraway.large).sink_to(ParquetSink('out'), uid='sink')\n"
        "print(env.execute('beside').status)\n"
    )
    done = run(
        python(tmp_path / "job" / "job.py", tmp_path / "elsewhere"), cwd=tmp_path, MASTER="local-cluster[2,1,1024]"
    )
    assert (done.code, done.out, done.errors) == (0, "FINISHED\n", []), done.err
    import pyarrow.parquet as pq

    assert sorted(pq.read_table(tmp_path / "out").column("n").to_pylist()) == [10, 12, 14, 16, 18]


def test_spark_submit_to_a_standalone_cluster(flights, standalone, tmp_path):
    """The coordinator is a process beside the driver; when the application ends, all of it is gone."""
    done = run(
        [
            *(SPARK_SUBMIT, "--master", standalone.master, "--conf", "spark.executor.memory=512m"),
            *("--conf", "spark.executor.cores=1", "--conf", "spark.snapline.log.level=WARNING"),
            *(ROOT / "examples" / "flights.py", "--input", flights, "--output", tmp_path / "out"),
        ],
        cwd=tmp_path,
    )
    assert done.code == 0, done.err
    assert re.search(FINISHED, done.out), done.out
    assert_right(flights, tmp_path / "out")
    assert wait_until_gone(standalone.mark, r"(pyspark|snapline\.spark)\.daemon|CoarseGrainedExecutorBackend") == {}
    assert len(marked(standalone.mark, r"deploy\.(master|worker)")) == 2
    assert not [line for line in done.err.splitlines() if line.startswith("{") and json.loads(line)["level"] == "ERROR"]


def test_a_python_on_the_executors_that_cannot_import_snapline_is_named(flights, tmp_path):
    """The base interpreter lacks what the virtualenv has: one line, exit code 1, after the first attempt."""
    bare = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    script = ROOT / "examples" / "flights.py"
    done = run(
        python(script, "--input", flights, "--output", "out"),
        cwd=tmp_path,
        MASTER="local[1]",
        PYSPARK_PYTHON=str(bare),
        PYTHONPATH="",
    )
    assert (done.code, done.out) == (1, "")
    line = done.errors[-1]  # a slow machine says before that slots are waited for
    assert "Traceback" not in done.err
    assert line.startswith("flights: ") and "cannot import Snapline" in line and str(bare) in line, line
    assert list((tmp_path / "out").glob("*/*.parquet")) == []
