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

Java takes seconds until it starts this one. A driver that starts Java on its own machine starts another copy of it at
the same time (`snapline.spark.head_start`), which loads, and waits at a socket. The one that Java starts hands over to
that copy what Java knows it by, its standard streams, its environment and its import path, and then only passes
SIGTERM on and ends with it. Where no copy waits, or where it has loaded its libraries under settings that would have
made them others, the one that Java starts loads them itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODULE = "snapline.spark.daemon"
"""Name of this module, for the setting `spark.python.daemon.module`."""
WAIT_AT = "--wait-at"
"""Argument of a copy that waits; the number of its listening socket, the driver's process, and the directory of the
socket follow."""
WAITS_AT_VARIABLE = "SNAPLINE_DAEMON_WAITS_AT"
"""Path of the socket at which a copy waits, for the daemon that Java starts."""
ANSWER_BYTES = 32
"""More than the digits of a process id, with which a copy answers, and 0 when it does not suit."""
READ_WHEN_LOADED = (
    *("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "MKL_", "KMP_"),
    *("NUMBA_", "NUMPY_", "NPY_", "ARROW_", "GRPC_", "SNAPLINE_"),
)
"""Names of variables that Python, or one of the libraries, reads once, begin so."""
NOT_READ_WHEN_LOADED = frozenset(
    {
        *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE", "PYTHON_FAULTHANDLER_DIR"),
        *("PYTHON_UDF_BATCH_SIZE", "PYTHON_UNIX_DOMAIN_ENABLED", "PYTHON_WORKER_FACTORY_SECRET"),
        *("PYTHON_WORKER_FACTORY_SOCK_DIR", WAITS_AT_VARIABLE),
    }
)
"""But these are Spark's own, or have been handed over."""

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
        importlib.import_module("snapline.dataflow.columnar.compiler_pages").give_compiler_pages_back()
    with contextlib.suppress(Exception):
        importlib.import_module("pyarrow").array([0])  # the first one of a process loads pandas, where it is installed
    return missing


def reseed() -> None:
    """In every worker: numpy's global random numbers are its own, as they would be had it loaded numpy itself."""
    import numpy as np

    np.random.seed()  # noqa: NPY002 - it is the global generator that users would share


def main() -> None:
    """Load, then be Spark's daemon; or let the copy be it that has loaded already."""
    if sys.argv[1:2] == [WAIT_AT]:
        loaded_under = libraries_depend_on(_identity())
        atexit.register(_remove_of_the_dead, int(sys.argv[3]), sys.argv[4])
        preload()
        if not wait_for_java(int(sys.argv[2]), loaded_under):
            return
    else:
        waiting = os.environ.pop(WAITS_AT_VARIABLE, "")
        if waiting and hand_over(waiting):
            return
        preload()
    if "numpy" in sys.modules:
        os.register_at_fork(after_in_child=reseed)
    gc.collect()
    gc.freeze()  # workers share these pages as long as nobody writes to them
    from pyspark.daemon import manager

    manager()


def hand_over(address: str) -> bool:
    """Let the copy that waits at this socket be the daemon of who started this process, until it ends; False: none
    waits there, or none that suits."""
    import signal
    import socket

    with socket.socket(socket.AF_UNIX) as copy:
        try:
            copy.connect(address)
            if not _is_of_this_user(copy):
                return False
            socket.send_fds(copy, [b"{"], [0, 1, 2])
            copy.sendall(json.dumps(_identity()).encode()[1:])
            copy.shutdown(socket.SHUT_WR)
            pid = int(copy.recv(ANSWER_BYTES) or b"0")
        except (OSError, ValueError):
            return False
        if not pid:
            return False

        def pass_on(number: int, _frame: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        signal.signal(signal.SIGTERM, pass_on)
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)  # as Spark's daemon does: signals of the terminal are not for it
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.dup2(nowhere, 1)
        with contextlib.suppress(OSError):
            copy.recv(1)  # nothing comes: the copy has ended
    return True


def wait_for_java(listener_fd: int, loaded_under: Mapping[str, Any]) -> bool:
    """Wait at this socket for the process that Java starts, and become what it is; False: nobody came, and who started
    this process has ended, or this process does not suit, because its libraries were loaded under something else."""
    import selectors
    import socket

    with socket.socket(fileno=listener_fd) as listener, selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        if not any(key.fileobj is listener for key, _ in selector.select()):
            return False
        connection, _ = listener.accept()
    first, fds, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as rest:
        given: dict[str, Any] = json.loads(first + rest.read())
    if len(fds) != 3 or libraries_depend_on(given) != loaded_under:
        connection.sendall(b"0")
        return False
    for stream, fd in enumerate(fds):
        os.dup2(fd, stream)
        os.close(fd)
    os.environ.clear()
    os.environ.update(given["environment"])
    os.environ.pop(WAITS_AT_VARIABLE, None)
    os.chdir(given["directory"])
    sys.path[:], sys.argv[1:] = given["path"], given["arguments"]
    connection.sendall(str(os.getpid()).encode())
    os.register_at_fork(after_in_child=connection.close)  # it ends with this process, and only with it
    return True


def _is_of_this_user(connection: Any) -> bool:
    """Whether the other end of a socket on this machine belongs to whom this process belongs to: what is handed over
    has secrets in it."""
    import socket
    import struct

    if not hasattr(socket, "SO_PEERCRED"):
        return False
    _, user, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return bool(user == os.getuid())


def _remove_of_the_dead(driver: int, directory: str) -> None:
    """Remove the directory of a driver that cannot do it any more."""
    if os.getppid() != driver:
        shutil.rmtree(directory, ignore_errors=True)


def libraries_depend_on(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What decides how Python and its libraries are loaded: in a process that differs here they would be others."""
    read = {
        name: value
        for name, value in identity["environment"].items()
        if name.startswith(READ_WHEN_LOADED) and name not in NOT_READ_WHEN_LOADED
    }
    return {"executable": identity["executable"], "environment": read}


def _identity() -> dict[str, Any]:
    return {
        "executable": sys.executable,
        "environment": {**os.environ},
        "path": sys.path,
        "arguments": sys.argv[1:],
        "directory": str(Path.cwd()),
    }


if __name__ == "__main__":
    main()
