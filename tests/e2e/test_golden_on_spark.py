"""The golden job on executors of Spark, in processes of their own: every operator puts out there what it puts out on
TaskManagers without Spark (tests/golden/test_golden.py) and in one process (tests/golden/test_golden_locally.py)."""

from __future__ import annotations

import pytest

from tests.e2e.programs import ROOT, python, run
from tests.golden.test_golden import check

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.rare, pytest.mark.timeout(600)]

PROGRAM = """
import snapline as sl
from tests.golden.job import build

env = sl.StreamExecutionEnvironment.get_execution_environment({"parallelism.default": "2"})
env.checkpointing.interval(300).directory("checkpoints")
print(build(env, "out", None).execute("golden").summary)
"""


def test_every_operator_on_spark(tmp_path):
    """Branch by branch, every row as often."""
    (tmp_path / "golden.py").write_text(PROGRAM)
    done = run(python("golden.py"), tmp_path, 500, PYTHONPATH=str(ROOT), MASTER="local-cluster[2,2,1024]")
    assert done.code == 0, done.err
    assert done.out.startswith("FINISHED")
    check(tmp_path / "out")
