"""Spark's Python daemon with a TaskManager's libraries already loaded, so that a worker that replaces a killed one
starts at once.

Spark starts `python -m <spark.python.daemon.module>` once per executor and lets it fork a worker per task; its own
daemon loads nothing beforehand, and every new worker spends about a second of a core on imports. This one loads them
before it hands over to Spark's. Only what survives a fork is loaded: modules that start no thread, or whose threads'
libraries know of forks (Arrow's and OpenBLAS's do); gRPC and Flight are loaded, and never used here. What cannot be
loaded is left to the worker, which says what is missing. Sessions that Snapline opens use this daemon
(`snapline.session`); another one does with

    spark.python.daemon.module = snapline.spark.daemon

which needs Snapline installed on the executors: files of `--py-files` are not there yet when the daemon starts.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Sequence

MODULE = "snapline.spark.daemon"
"""Name of this module, for the setting `spark.python.daemon.module`."""

PRELOADED = (
    "pyspark.worker",
    "snapline.spark.executor",
    "snapline.taskmanager.task_manager_process",
    "snapline.taskmanager.task_manager",
    "snapline.taskmanager.operators.factory",
    "snapline.dataflow.columnar.key_partition",
    "snapline.taskmanager.state.keyed_backend",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyarrow.flight",
)
"""Between them they import all that a task of the usual kind needs, the compiled kernels included."""


def preload(modules: Sequence[str] = PRELOADED) -> list[str]:
    """Import what is there; returns what is not."""
    os.environ.setdefault(
        "GRPC_ENABLE_FORK_SUPPORT", "0"
    )  # read when gRPC is imported; nothing is open before the fork
    missing = []
    with contextlib.suppress(Exception):  # without Snapline the modules below are missing
        importlib.import_module("snapline.dataflow.columnar.kernel").compile_kernels_at_once()
        importlib.import_module("snapline.runtime.rpc.grpc_polling").import_grpc_with_few_wake_ups()
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # whatever it is, it happens again in the worker, which has somebody to tell
            missing.append(module)
    with contextlib.suppress(Exception):
        importlib.import_module("pyarrow").array([0])  # the first one of a process loads pandas, where it is installed
    return missing


def reseed() -> None:
    """In every worker: numpy's global random numbers are its own, as they would be had it loaded numpy itself."""
    import numpy as np

    np.random.seed()  # noqa: NPY002 - it is the global generator that users would share


def main() -> None:
    """Load, then be Spark's daemon."""
    preload()
    if "numpy" in sys.modules:
        os.register_at_fork(after_in_child=reseed)
    gc.collect()
    gc.freeze()  # workers share these pages as long as nobody writes to them
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
