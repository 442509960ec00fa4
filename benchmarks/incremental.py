"""What an incremental checkpoint writes when few of many keys were changed, beside a full one: one operator, no
cluster.

    python -m benchmarks.incremental [--keys 10000000] [--changed 0.01] [--backend hashmap|rocksdb] [--memory "256 mb"]
        [--json]

The keys that are changed are spread over all key groups. The chain of full and incremental part is restored at the end
into a new backend, and its sums are compared with what was added.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.cluster import versions
from snapline.dataflow.api.state import RunningAggregateDescriptor
from snapline.dataflow.config import ROCKSDB_MEMORY
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import ByteStreamStateHandle, KeyedStateHandle
from snapline.taskmanager.snapshots.restore import InlineBlob
from snapline.taskmanager.state.incremental import IncrementalPart, IncrementalSnapshots
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.outside.segment_files import SegmentFiles
from snapline.taskmanager.state.outside.spilling_backend import SpillingKeyedStateBackend

SCHEMA = pa.schema([("key", pa.int64())])
SUMS = RunningAggregateDescriptor("total", pa.int64(), ("sum",))
BATCH_ROWS = 65_536
MAX_PARALLELISM = 128


def open_backend(backend: str, memory: str, directory: str) -> KeyedStateBackend:
    """Open the state backend as an operator does."""
    key_groups = KeyGroupRange(0, MAX_PARALLELISM - 1)
    if backend == "hashmap":
        return KeyedStateBackend(SCHEMA, key_groups, MAX_PARALLELISM)
    space = SegmentFiles(directory)
    return SpillingKeyedStateBackend(SCHEMA, key_groups, MAX_PARALLELISM, space, ROCKSDB_MEMORY.read(memory))


def add(backend: KeyedStateBackend, keys: np.ndarray[Any, np.dtype[np.int64]], amount: int) -> None:
    """To the sums of these keys."""
    sums = backend.get_running_aggregate(SUMS)
    for first in range(0, len(keys), BATCH_ROWS):
        batch = keys[first : first + BATCH_ROWS]
        sums.fold_batch(backend.slots([pa.array(batch)]), np.full(len(batch), amount), running=False)


def checkpoint(chain: IncrementalSnapshots, number: int) -> tuple[dict[str, float], list[KeyedStateHandle]]:
    """One that completes: its figures, and all of its parts."""
    began, began_cpu = time.perf_counter(), time.thread_time()
    parts = chain.snapshot(number)
    frozen, frozen_cpu = time.perf_counter(), time.thread_time()
    handles = [handle for part in parts for handle in part.references]
    own = [written(part) for part in parts]
    chain.completed(number)
    figures = {
        "written_bytes": sum(handle.handle.state_size_bytes for handle in own),
        "synchronous_ms": 1e3 * (frozen - began),
        "synchronous_cpu_ms": 1e3 * (frozen_cpu - began_cpu),
        "encode_cpu_ms": 1e3 * (time.thread_time() - frozen_cpu),
    }
    return figures, [*handles, *own]


def written(part: IncrementalPart) -> KeyedStateHandle:
    """Encode the part and return a handle that keeps it."""
    data = part.encode()
    part.release()
    return part.stored(ByteStreamStateHandle(bytes(data)))


def measure(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Full, then incremental; RuntimeError if the restored sums are wrong."""
    backend = open_backend(options.backend, options.memory, directory)
    everything = np.random.default_rng(1).permutation(options.keys).astype(np.int64)
    add(backend, everything, 1)
    chain = backend.incremental_snapshots("sums")
    full, _ = checkpoint(chain, 1)
    changed = everything[: round(options.changed * options.keys)]
    add(backend, changed, 10)
    incremental, handles = checkpoint(chain, 2)
    backend.close()
    restored = open_backend(options.backend, options.memory, directory)
    restored.restore(InlineBlob(part.handle.data) for part in handles if isinstance(part.handle, ByteStreamStateHandle))
    sums = restored.get_running_aggregate(SUMS)
    for keys, expected in ((changed, 11), (everything[len(changed) :], 1)):
        for first in range(0, len(keys), max(1, len(keys) // 10)):
            some = keys[first : first + 1000]
            found = sums.get_batch(restored.slots([pa.array(some)])).field("sum")
            if not (found.null_count == 0 and (np.asarray(found) == expected).all()):
                raise RuntimeError("a restored sum is wrong")
    count = len(restored)
    restored.close()
    if count != options.keys:
        raise RuntimeError(f"{count} keys were restored")
    share = incremental["written_bytes"] / full["written_bytes"]
    return {"full": full, "incremental": incremental, "incremental_share": share}


def main(arguments: list[str] | None = None) -> int:
    """Measure the cases and print a line for each."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--keys", type=int, default=10_000_000)
    cli.add_argument("--changed", type=float, default=0.01, help="share of the keys")
    cli.add_argument("--backend", choices=("hashmap", "rocksdb"), default="hashmap")
    cli.add_argument("--memory", default="256 mb", help="state.backend.rocksdb.memory.fixed-per-slot")
    cli.add_argument("--json", action="store_true")
    options = cli.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="snapline-benchmark-") as directory:
        try:
            figures = {"keys": options.keys, "backend": options.backend, **measure(options, directory)}
        except RuntimeError as error:
            print(f"benchmark: {error}", file=sys.stderr)
            return 1
    print(json.dumps({**figures, "versions": versions()}) if options.json else json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
