"""The same programs on a session of Spark Connect, which has no SparkContext, against the server of PySpark's wheel;
`tests/unit/snapline/spark/test_spark_hosts.py` is the short form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import programs
from tests.services.connect_server import connect_server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.rare, pytest.mark.timeout(900)]


def test_frames_streams_and_resumable_functions_work_on_connect(tmp_path: Path) -> None:
    """TaskManagers are launched by `mapInArrow`, and every door between Spark and a job is open."""
    program = programs.python(Path(__file__).with_name("connected.py"), tmp_path)
    with connect_server(tmp_path) as remote:
        ended = programs.run(program, programs.ROOT, 600, SPARK_REMOTE=remote, PYTHONPATH=str(programs.ROOT))
    assert ended.code == 0, ended.err
    assert ended.printed.splitlines() == [
        "frame True",
        "stream True",
        "resumable True",
        "partitions [(1000, True), (1000, True)]",
    ]
    assert ended.errors == []


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """The program ends with it, and does not wait for ever."""
    job = tmp_path / "job.py"
    job.write_text(
        "import snapline as sl\n"
        "env = sl.StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([{'x': 1}]).print()\n"
        "env.execute('one')\n"
    )
    ended = programs.run(
        programs.python(job), programs.ROOT, SPARK_REMOTE="sc://127.0.0.1:1", PYTHONPATH=str(programs.ROOT)
    )
    assert (1, "") == (ended.code, ended.out)
    assert [line.partition(" (")[0] for line in ended.errors] == [
        "snapline: no server of Spark Connect answers at 127.0.0.1:1"
    ]
    assert ended.errors[0].endswith("(SPARK_REMOTE=sc://127.0.0.1:1): start it, or say another")
