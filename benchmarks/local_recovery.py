"""How long one operator's state takes to come back, from the storage and from the local disk: one operator, no cluster.

    python -m benchmarks.local_recovery [--keys 1000000] [--mb-per-s 100] [--request-ms 20] [--trials 5] [--json]

The storage is a local disk that answers as one far away does: each request waits, and bytes come at a rate. The state
is snapshot once through the uploader, with local recovery, and restored by the next TaskManager on the machine, in
turns with and without it. Sums are compared with what was added.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.cluster import checkpoint_directory, versions
from benchmarks.incremental import SUMS, add, open_backend
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID, ResourceID
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.runtime.logs import silent_logger
from snapline.runtime.storage.local_storage import LocalStorage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import Buffer
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot
from snapline.taskmanager.snapshots.local_directories import LocalDirectories
from snapline.taskmanager.snapshots.local_recovery import LocalRecovery
from snapline.taskmanager.snapshots.restore import SnapshotReader
from snapline.taskmanager.snapshots.uploader import SnapshotUploader

JOB, OPERATOR = JobID(f"{1:032x}"), OperatorID(f"{7:032x}")


class FarStorage(LocalStorage):
    """As slow as it is told to be."""

    def __init__(self, directory: str, request_ms: float, mb_per_s: float) -> None:
        super().__init__(directory)
        self._request_ms, self._mb_per_s = request_ms, mb_per_s

    def get_range(self, path: str, offset: int, size: int) -> bytes:
        time.sleep(self._request_ms / 1e3 + size / (1e6 * self._mb_per_s))
        return super().get_range(path, offset, size)

    def put_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        time.sleep(self._request_ms / 1e3 + sum(memoryview(part).nbytes for part in parts) / (1e6 * self._mb_per_s))
        super().put_parts(path, parts)


def local_recovery(directory: Path, name: str) -> LocalRecovery:
    """The local copies of one TaskManager."""
    return LocalRecovery(
        lambda: LocalDirectories([str(directory / "local")], ResourceID(name)), lambda *_: None, silent_logger()
    )


def snapshot(options: argparse.Namespace, storages: StateStorages, base: str, local: LocalRecovery) -> Any:
    """What the operator acknowledges, and how long the asynchronous part took."""
    backend = open_backend("hashmap", "", "")
    add(backend, np.random.default_rng(1).permutation(options.keys), 3)
    uploader = SnapshotUploader(ResourceID("tm-1"), storages, local=local)
    sink, answers = uploader.for_task(base, local.of_job(JOB)), queue.Queue[Any]()
    began = time.perf_counter()
    sink.start(
        CheckpointID(1), "chk-1", [(OPERATOR, OperatorSnapshot(keyed=backend.snapshot_parts()))], None, answers.put
    )
    answer = answers.get()
    seconds = time.perf_counter() - began
    uploader.close()
    if isinstance(answer, BaseException):
        raise answer
    return answer, seconds


def restore(options: argparse.Namespace, reader: SnapshotReader, state: TaskStateSnapshot) -> dict[str, float]:
    """Once, into a new backend."""
    backend = open_backend("hashmap", "", "")
    began = time.perf_counter()
    backend.restore([reader.open_state(part.handle) for part in state.operators[OPERATOR].managed_keyed])
    seconds = time.perf_counter() - began
    slots = backend.slots([pa.array(np.arange(options.keys))])
    totals = backend.get_running_aggregate(SUMS).get_batch(slots).flatten()[1].to_numpy(zero_copy_only=False)
    if len(backend) != options.keys or not (totals == 3).all():
        raise RuntimeError("the sums that came back are others")
    return {
        "restore_ms": 1e3 * seconds,
        "local_bytes": reader.bytes_read.local,
        "remote_bytes": reader.bytes_read.remote,
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--keys", type=int, default=1_000_000)
    cli.add_argument("--mb-per-s", type=float, default=100.0, help="of the storage")
    cli.add_argument("--request-ms", type=float, default=20.0, help="that each request to it waits")
    cli.add_argument("--trials", type=int, default=5)
    cli.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = cli.parse_args(arguments)
    directory = Path(checkpoint_directory())
    base = str(directory / "checkpoints")
    storages = StateStorages(lambda url: FarStorage(url, options.request_ms, options.mb_per_s))
    try:
        first = local_recovery(directory, "tm-1")
        state, seconds = snapshot(options, storages, base, first)
        first.close(keep=True)
        second = local_recovery(directory, "tm-2")
        found: dict[str, list[dict[str, float]]] = {"storage": [], "local disk": []}
        for _ in range(options.trials):
            found["storage"].append(restore(options, SnapshotReader(base, storages), state))
            reader = SnapshotReader(base, storages, second.of_job(JOB))
            found["local disk"].append(restore(options, reader, state))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    figures = {
        name: {key: statistics.median(trial[key] for trial in trials) for key in trials[0]}
        for name, trials in found.items()
    }
    print(f"{options.keys:,} keys, written in {1e3 * seconds:.0f} ms; medians of {options.trials}")
    for name, each in figures.items():
        print(f"  from the {name:<12} " + ", ".join(f"{key} {value:,.0f}" for key, value in each.items()))
    if options.json:
        print(json.dumps({"keys": options.keys, "snapshot_ms": 1e3 * seconds, **figures, "versions": versions()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
