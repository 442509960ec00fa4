"""State far larger than memory: one keyed operator on `rocksdb` in a process that may not have more memory than a
limit.

    python -m benchmarks.large_state [--state-mib 4096] [--limit-mib 1024] [--row-bytes 1000] [--memory "256 mb"]
        [--json]

A child process fills the state with one value of random bytes per key, reads and writes it at random, takes a snapshot
to disk through the uploader, as a TaskManager does, and a second process restores it and compares values. Both are
killed, and the run fails, once their resident memory of their own (RssAnon, looked at twenty times a second) is above
the limit, which is what a container's limit would do. Pages of mapped files are not in it: the operating system takes
them back when it needs memory.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.cluster import checkpoint_directory, versions
from snapline.dataflow.api.state import ValueStateDescriptor
from snapline.dataflow.config import ROCKSDB_MEMORY
from snapline.dataflow.ids import CheckpointID, OperatorID, ResourceID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.dataflow.wire.state_codec import decode_task_state, encode_task_state
from snapline.protos import checkpoint_pb2 as pb
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot
from snapline.taskmanager.snapshots.restore import SnapshotReader
from snapline.taskmanager.snapshots.uploader import SnapshotUploader
from snapline.taskmanager.state.outside.segment_files import SegmentFiles
from snapline.taskmanager.state.outside.spilling_backend import SpillingKeyedStateBackend

BATCH_ROWS = 16_384
MAX_PARALLELISM = 1024
OPERATOR = OperatorID(f"{7:032x}")
SCHEMA = pa.schema([("key", pa.int64())])
VALUE = ValueStateDescriptor("value", pa.binary())


def values_of(keys: np.ndarray[Any, np.dtype[np.int64]], row_bytes: int, round_number: int) -> pa.Array:
    """A value that follows from its key: its words are a hash of it, so that compression saves little."""
    words = row_bytes // 8
    seeds = (keys.astype(np.uint64) + np.uint64(round_number)) * np.uint64(0x9E3779B97F4A7C15)
    table = seeds[:, None] * (2 * np.arange(words, dtype=np.uint64) + np.uint64(1))
    table ^= table >> np.uint64(29)
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * (words * 8)
    return pa.Array.from_buffers(
        pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(table))]
    )


def own_mib(pid: int) -> float:
    """Resident memory of a process that is no file's; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("RssAnon:")), 0)


def open_backend(options: argparse.Namespace) -> SpillingKeyedStateBackend:
    """Open the state backend as an operator does."""
    space = SegmentFiles(str(Path(options.directory) / "state"))
    key_groups = KeyGroupRange(0, MAX_PARALLELISM - 1)
    return SpillingKeyedStateBackend(SCHEMA, key_groups, MAX_PARALLELISM, space, ROCKSDB_MEMORY.read(options.memory))


def fill(options: argparse.Namespace) -> dict[str, Any]:
    """Build the state, use it, snapshot it."""
    keys = options.state_mib * (1 << 20) // options.row_bytes
    backend = open_backend(options)
    state = backend.get_state(VALUE)
    began = time.perf_counter()
    for first in range(0, keys, BATCH_ROWS):
        batch = np.arange(first, min(keys, first + BATCH_ROWS))
        state.put_batch(backend.slots([pa.array(batch)]), values_of(batch, options.row_bytes, 0))
    filled = time.perf_counter()
    random = np.random.default_rng(1)
    for _ in range(options.batches):
        batch = np.unique(random.integers(0, keys // 2, BATCH_ROWS))
        slots = backend.slots([pa.array(batch)])
        old = state.get_batch(slots)
        if old.null_count:
            raise RuntimeError("a key has lost its value")
        state.put_batch(slots, values_of(batch, options.row_bytes, 0))
    used = time.perf_counter()
    uploader = SnapshotUploader(ResourceID("tm"), StateStorages(open_storage))
    answers: queue.Queue[Any] = queue.Queue()
    frozen = time.perf_counter()
    parts = backend.snapshot_parts()
    synchronous = time.perf_counter() - frozen
    sink = uploader.for_task(str(Path(options.directory) / "checkpoints"))
    sink.start(CheckpointID(1), "chk-1", [(OPERATOR, OperatorSnapshot(keyed=parts))], None, answers.put)
    answer = answers.get()
    written = time.perf_counter()
    uploader.close()
    if isinstance(answer, BaseException):
        raise answer
    message = pb.TaskStateSnapshot()
    encode_task_state(answer, message)
    (Path(options.directory) / "handles").write_bytes(message.SerializeToString())
    backend.close()
    return {
        "keys": keys,
        "filled_rows_per_s": keys / (filled - began),
        "read_and_written_rows_per_s": options.batches * BATCH_ROWS / (used - filled),
        "snapshot_mib": answer.state_size_bytes / (1 << 20),
        "snapshot_synchronous_ms": 1e3 * synchronous,
        "snapshot_s": written - frozen,
    }


def restore(options: argparse.Namespace) -> dict[str, Any]:
    """Take the state back, and compare some of it."""
    message = pb.TaskStateSnapshot.FromString((Path(options.directory) / "handles").read_bytes())
    handles: TaskStateSnapshot = decode_task_state(message)
    reader = SnapshotReader(str(Path(options.directory) / "checkpoints"), StateStorages(open_storage))
    backend = open_backend(options)
    began = time.perf_counter()
    backend.restore([reader.open_state(part.handle) for part in handles.operators[OPERATOR].managed_keyed])
    seconds = time.perf_counter() - began
    state = backend.get_state(VALUE)
    keys = len(backend)
    for first in range(0, keys, max(1, keys // 20)):
        batch = np.arange(first, min(keys, first + 1000))
        found = state.get_batch(backend.slots([pa.array(batch)]))
        if not found.equals(values_of(batch, options.row_bytes, 0)):
            raise RuntimeError(f"values of the keys from {first} on differ")
    backend.close()
    return {"restored_keys": keys, "restore_s": seconds}


def watched(step: str, arguments: list[str], limit_mib: int) -> dict[str, Any] | None:
    """Run one step in a process of its own; None if it failed, or was killed because it had more memory than the
    limit."""
    command = [sys.executable, "-m", "benchmarks.large_state", *arguments, "--child", step]
    peak = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None:
            peak = max(peak, own_mib(child.pid))
            if peak > limit_mib:
                child.kill()
                print(f"benchmark: {step} had {peak:.0f} MiB, more than the limit of {limit_mib}", file=sys.stderr)
                return None
            time.sleep(0.05)
        if child.returncode or child.stdout is None:
            print(f"benchmark: {step} ended with exit code {child.returncode}", file=sys.stderr)
            return None
        figures: dict[str, Any] = json.loads(child.stdout.read().splitlines()[-1])
        return {**figures, "peak_mib": round(peak)}


def main(arguments: list[str] | None = None) -> int:
    """Run both processes and report."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--state-mib", type=int, default=4096)
    cli.add_argument("--limit-mib", type=int, default=1024)
    cli.add_argument("--row-bytes", type=int, default=1000)
    cli.add_argument("--memory", default="256 mb", help="state.backend.rocksdb.memory.fixed-per-slot")
    cli.add_argument("--batches", type=int, default=20, help="batches that are read and written at random")
    cli.add_argument(
        "--directory", default="", help="where state and the snapshot lie (default: a temporary directory)"
    )
    cli.add_argument("--json", action="store_true")
    cli.add_argument("--child", choices=("fill", "restore"), help=argparse.SUPPRESS)
    options = cli.parse_args(arguments)
    if options.child:
        print(json.dumps((fill if options.child == "fill" else restore)(options)))
        return 0
    directory = options.directory or checkpoint_directory()
    figures: dict[str, Any] = {"state_mib": options.state_mib, "limit_mib": options.limit_mib}
    try:
        for step in ("fill", "restore"):
            given = sys.argv[1:] if arguments is None else arguments
            found = watched(step, [*given, "--directory", directory], options.limit_mib)
            if found is None:
                return 1
            figures[step] = found
    finally:
        if not options.directory:
            shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps({**figures, "versions": versions()}) if options.json else json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
