"""A source that follows a directory of many small files: what finding them costs, also when nothing new comes, and what
a checkpoint holds.

First the enumerator alone, look after look; then a job in this process that follows the same directory with a
checkpoint every second, until it has read some of the files. Times are of this process; processor time includes all its
threads. Files are in the cache of the operating system.

    python -m benchmarks.follow_files --files 100000
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import snapline as sl
from snapline.connectors import DiscardingSink, FileSource, RawFormat
from snapline.connectors.files.file_discovery import FileEnumerator
from snapline.local.local_execution import open_local_job

FILES_IN_A_DIRECTORY = 1_000


def make_files(directory: Path, first: int, count: int) -> None:
    """Make files of one line each."""
    for number in range(first, first + count):
        below = directory / f"{number // FILES_IN_A_DIRECTORY:04}"
        below.mkdir(exist_ok=True)
        (below / f"{number:08}.txt").write_bytes(b"a line\n")


class Stopwatch:
    """Elapsed and processor time since it was made."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Seconds on the clock, and of the processor."""
        return time.perf_counter() - self._wall, time.process_time() - self._processor


def source_of(directory: Path) -> FileSource:
    """Return the source that is measured, with its usual memory."""
    return FileSource(directory, RawFormat("line", text=True), follow=True)


def discover(directory: Path, files: int) -> None:
    """Measure how long the enumerator takes to find all files, without a job around it."""
    enumerator = FileEnumerator(source_of(directory))
    state: dict[str, Any] = {}
    found, sizes, looks, watch = 0, [0], 0, Stopwatch()
    while found < files:
        discovery = enumerator.discover(state)
        state, found, looks = discovery.state, found + len(discovery.splits), looks + 1
        sizes.append(len(json.dumps(state)))
    wall, processor = watch.read()
    print(f"discovery of {found:,} files: {wall:.2f} s, {processor:.2f} s of processor, {looks} looks")
    print(f"state: {max(sizes) / 1000:.0f} kB at most")
    costs = []
    for _ in range(3):
        watch = Stopwatch()
        enumerator.discover(state)
        costs.append(watch.read()[1])
    print(f"a look that finds nothing: {statistics.median(costs):.2f} s of processor (median of {len(costs)})")


def run_job(directory: Path, files: int) -> None:
    """Measure a job until it has read so many files."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(2)
    environment.checkpointing.interval(1_000)
    environment.from_source(source_of(directory), uid="in").rescale().sink_to(DiscardingSink(), uid="out")
    with open_local_job(environment, "follow", 1) as job:
        watch = Stopwatch()

        def has_read_enough() -> bool:
            # One row for each split that was handed out, and one for its line.
            return sum(task.records_out for task in job.task_metrics()) >= 2 * files

        job.run(until=has_read_enough)
        wall, processor = watch.read()
        print(f"job: {files / wall:,.0f} files/s, {processor / files * 1e6:.0f} us of processor each")
        listed = job.checkpoints()
        sizes = [each.state_size_bytes for each in listed.history]
        times = [each.end_to_end_duration_ms for each in listed.history]
        print(
            f"checkpoints: {max(sizes) / 1000:.0f} kB at most, {statistics.median(times):.0f} ms (median of {len(times)})"
        )


def main() -> int:
    """Write the files, measure how they are found and read, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--read", type=int, default=10_000, help="so many of them are read by the job")
    parser.add_argument("--directory", default=None, help="where the files are made; default is a temporary one")
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, pyarrow {pa.__version__}, {options.files:,} files")
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        make_files(directory, 0, options.files)
        discover(directory, options.files)
        run_job(directory, min(options.read, options.files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
