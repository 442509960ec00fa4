"""A coordinator beside this program and TaskManagers in its Spark application, held in one's own hands.

`StreamExecutionEnvironment.execute` starts such a cluster for one job and stops it. This is for programs that run
several jobs in one Spark application, or look at the cluster while a job runs, as `examples/demo.py` does.
"""

from snapline.execution import run_in
from snapline.rows_read import RowsRead
from snapline.runtime.logs import silent_logger
from snapline.session import EmbeddedCluster, SparkHandle, open_spark, slots_required

__all__ = ["EmbeddedCluster", "RowsRead", "SparkHandle", "open_spark", "run_in", "silent_logger", "slots_required"]
