"""Which Python a session of the user's starts beside Spark: that of the program, where nobody said another one.

PySpark takes `python3` of the PATH, which need not be the one of the program's virtual environment, and then lacks what
is installed there. TaskManagers have a Python of their own; this is for what reads and writes frames.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from snapline.spark.spark_hosts import LOOPBACK_MASTERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use_own_python(spark: SparkSession) -> None:
    """Executors on this machine take the program's Python, unless another one was set."""
    from pyspark.errors import PySparkException

    try:
        context = spark.sparkContext
    except PySparkException:  # Spark Connect: the server's Python is set up there
        return
    is_here = str(context.master).startswith(LOOPBACK_MASTERS)
    is_set = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if is_here and not is_set:
        context.pythonExec = sys.executable
