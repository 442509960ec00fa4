"""The preloading daemon: what it loads exists, survives the fork, and never gets in the way of Spark's own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark import SparkConf

from snapline.session import _unless_configured
from snapline.spark.daemon import MODULE, PRELOADED, preload

IN_A_FORK = """
import os, sys
from snapline.spark.daemon import PRELOADED, preload, reseed
assert preload() == [], preload()
os.register_at_fork(after_in_child=reseed)
read_end, write_end = os.pipe()
for _ in range(2):
    if os.fork():
        os.wait()
        continue
    from importlib.util import find_spec
    assert "pandas" in sys.modules or find_spec("pandas") is None, "the first array of a task loads pandas"
    from concurrent.futures import ThreadPoolExecutor
    import grpc, numpy as np, pyarrow as pa, pyarrow.compute as pc
    from pyarrow import flight
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(60)
    server.stop(None).wait()
    class Exchange(flight.FlightServerBase):
        def list_flights(self, context, criteria):
            return iter([])
    with Exchange("grpc://127.0.0.1:0") as exchange:
        with flight.connect(f"grpc://127.0.0.1:{exchange.port}") as client:
            assert list(client.list_flights()) == []
    from snapline.dataflow.columnar.key_partition import owners_of
    assert len(owners_of([pa.array(range(10))], 128, 2)) == 10
    assert pc.sum(pa.array(range(100_000))).as_py() == 4_999_950_000
    assert (np.ones((200, 200)) @ np.ones((200, 200))).sum() == 8_000_000
    os.write(write_end, np.random.bytes(8))
    os._exit(0)
os.close(write_end)
first, second = os.read(read_end, 8), os.read(read_end, 8)
assert first and first != second, "both workers draw the same numbers"
print("fine")
"""


def test_what_is_preloaded_works_in_a_worker():
    """gRPC, Flight, Arrow, BLAS and kernels in forked processes, which draw random numbers of their own."""
    done = subprocess.run([sys.executable, "-c", IN_A_FORK], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_what_cannot_be_loaded_is_left_to_the_worker():
    """The daemon starts all the same."""
    assert preload(("no_such_module_of_anybody", "json")) == ["no_such_module_of_anybody"]


@pytest.mark.parametrize(
    ("configured", "chosen"),
    [
        ({}, {"spark.task.maxFailures": "1", "spark.python.daemon.module": MODULE}),
        ({"spark.submit.pyFiles": "/a/b.zip"}, {"spark.task.maxFailures": "1"}),
        ({"spark.python.daemon.module": "mine", "spark.task.maxFailures": "9"}, {}),
    ],
)
def test_settings_of_the_user_win(configured, chosen):
    """And files that travel with the job are not there yet when the daemon starts."""
    conf = SparkConf(loadDefaults=False).setAll([*configured.items()])
    assert _unless_configured(conf) == chosen


def test_the_name_is_that_of_the_module():
    """It is what Spark runs; and the launcher's imports are among what is loaded."""
    import snapline.spark.daemon

    assert snapline.spark.daemon.__name__ == MODULE
    assert "snapline.spark.executor" in PRELOADED
