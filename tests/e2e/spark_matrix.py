"""Every door between Spark and Snapline, through every failure: the output is the same.

Doors: a DataFrame into a job, a streaming one, rows of a job as a DataFrame and as a streaming one, a resumable
function, programs outside as source, as operator, and as tasks of a job that has no others. Each is gone through
straight; with every process killed by signal 9 in turn, one in each run (a worker, Spark's Python daemon, an executor,
the coordinator, the driver's Java, the driver, a program outside), or an executor told to go, as a cluster manager
does; and stopped with a savepoint, and started from it at another parallelism. A driver that ends is started again, as
its user would.

    python -m tests.e2e.spark_matrix                          # all
    python -m tests.e2e.spark_matrix --doors frame_in,stream_in --faults straight,driver --master 'local[4]'
    python -m tests.e2e.spark_matrix --master standalone      # on a cluster of Spark's own, started for it
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from snapline.beside_drivers import DIRECTORY_VARIABLE, running
from snapline.client import ClusterClient, RequestRefused
from snapline.dataflow.config import COORDINATOR_ADDRESS, SECURITY_TOKEN, Configuration
from snapline.dataflow.errors import SnaplineError
from tests.e2e import programs
from tests.e2e.kill_matrix import parent_of
from tests.e2e.spark_program import ROWS
from tests.soak import standalone_spark

MASTER = "local-cluster[2,2,1024]"
STANDALONE = "standalone"
CORES = 4
OUTSIDE = {"external_source": "source", "external_operator": "operator", "external_only": "alone"}
"""What programs outside are, where there are any."""
DOORS = ("frame_in", "stream_in", "frame_out", "stream_out", "resumable", *OUTSIDE)
VICTIMS = ("worker", "daemon", "executor", "decommission", "coordinator", "java", "driver", "program")
FAULTS = ("straight", *VICTIMS, "savepoint")
NOT_THERE = {
    ("frame_out", "savepoint"): "to_dataframe runs to its end or not at all",
    ("resumable", "savepoint"): "other partitions are refused by their digest",
    ("resumable", "coordinator"): "partitions have none",
    **{(door, "program"): "there are none outside" for door in DOORS if door not in OUTSIDE},
}
STARTS = dict.fromkeys(("coordinator", "java", "driver", "savepoint"), 2)
"""So many starts of the driver are enough, where it is not one."""
STARTS_MAX = 6
POLL_S = 0.1


@dataclass
class Cell:
    """One door through one failure."""

    door: str
    fault: str
    starts: int = 0
    seconds: float = 0.0
    problem: str = ""
    """Empty: the output was equal."""
    came_at: str = ""
    """How much of the output was there when the fault came."""
    said: list[str] = field(default_factory=list)
    """The last line of each driver that did not end well."""

    def __str__(self) -> str:
        result = "EQUAL" if not self.problem else f"NOT EQUAL: {self.problem}"
        return f"{self.door:<17} {self.fault:<12} {result}  {self.starts} starts  {self.seconds:.0f} s  {self.came_at}".rstrip()


class Driver:
    """The driver of one cell, started as often as it takes."""

    def __init__(self, cell: Cell, directory: Path, master: str, patience_s: float) -> None:
        self.cell, self.directory, self._master, self._patience_s = cell, directory, master, patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._programs: list[subprocess.Popen[bytes]] = []
        self._mark = ""

    def start(self, parallelism: int = 2, restore: str = "") -> None:
        """Start it."""
        self.cell.starts += 1
        self._mark = uuid.uuid4().hex
        program = programs.python(
            Path(__file__).with_name("spark_program.py"), self.cell.door, self.directory, self._master, str(parallelism)
        )
        self._process = self._run([*program, *([restore] if restore else [])], f"driver-{self.cell.starts}", self._mark)
        while self.cell.door in OUTSIDE and len(self._programs) < parallelism:
            self._start_program()

    def _start_program(self) -> None:
        program = programs.python(Path(__file__).with_name("spark_outside.py"), OUTSIDE[self.cell.door], self.directory)
        self._programs.append(self._run(program, f"program-{len(self._programs)}", "outside"))

    def _run(self, command: Sequence[str | Path], name: str, mark: str) -> subprocess.Popen[bytes]:
        runtime = {DIRECTORY_VARIABLE: str(self.directory / "runtime"), "PYTHONPATH": str(programs.ROOT)}
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(part) for part in command],
                env=programs.environment(mark, **runtime),
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )

    def end_programs(self, count: int | None = None) -> int:
        """Kill so many of the programs outside, or all; how many that was."""
        killed = [self._programs.pop(0) for _ in self._programs[:count]]
        for program in killed:
            program.kill()
            program.wait()
        return len(killed)

    def kill(self, victim: str) -> bool:
        """Kill such a process; whether there was one."""
        if victim == "program":
            for _ in range(self.end_programs(1)):
                self._start_program()
            return True
        pids = self._pids(victim)
        if not pids:
            return False
        with suppress(ProcessLookupError):
            os.kill(pids[0], signal.SIGPWR if victim == "decommission" else signal.SIGKILL)
        return True

    def _pids(self, victim: str) -> list[int]:
        python = sorted(programs.marked(self._mark, r"spark\.daemon"))
        if victim == "worker":
            return [pid for pid in python if _parent(pid) in python]
        if victim == "daemon":
            return [pid for pid in python if _parent(pid) not in python]
        if victim in {"executor", "decommission"}:
            return sorted(programs.marked(self._mark, "CoarseGrainedExecutorBackend"))
        if victim == "coordinator":
            return sorted(programs.marked(self._mark, r"snapline\.coordinator"))
        if victim == "java":
            return sorted(programs.marked(self._mark, r"deploy\.SparkSubmit"))
        return [self._process.pid] if self._process is not None and self._process.poll() is None else []

    @property
    def has_ended(self) -> bool:
        """Whether there is none now."""
        return self._process is None or self._process.poll() is not None

    def end(self) -> int:
        """Wait for its end, and that of all it has started; the exit code. Raises AssertionError when there is none."""
        if self._process is None:
            return 0
        try:
            code = self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            for pid in programs.marked(self._mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"the driver does not end: {self._last_words()}") from None
        left = programs.wait_until_gone(self._mark)
        for pid in left:  # a driver that was killed leaves Java behind, which finds out when it is asked something
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if code:
            self.cell.said.append(self._last_words())
        return code

    def _last_words(self) -> str:
        lines = (self.directory / f"driver-{self.cell.starts}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def done(self) -> list[Path]:
        """The files of what checkpoints know of."""
        patterns = {
            "frame_out": "checkpoints/snapline-frame-*/*.parquet",
            "resumable": "progress/*/p-*/chk-*",
            "stream_out": "sink/*.parquet",
        }
        return list(self.directory.glob(patterns.get(self.cell.door, "out/*.parquet")))

    def note_how_far(self) -> None:
        """Say how much was done when the fault came, where files tell."""
        files = [path for path in self.done() if path.suffix == ".parquet"]
        if files:
            self.cell.came_at = f"at {sum(pq.read_metadata(path).num_rows for path in files) / ROWS:.0%}"

    def stop_with_savepoint(self) -> str:
        """Stop the job; the path. Raises AssertionError when the driver has ended before."""
        os.environ[DIRECTORY_VARIABLE] = str(self.directory / "runtime")
        while not self.has_ended:
            with suppress(SnaplineError, RequestRefused, IndexError):
                one = running()[0]
                values = {COORDINATOR_ADDRESS.key: one.address, SECURITY_TOKEN.key: one.token}
                with ClusterClient.from_configuration(Configuration(values)) as client:
                    job = client.list_jobs()[0]
                    return str(client.stop_with_savepoint(job.job_id, str(self.directory / "savepoints")))
            time.sleep(POLL_S)
        raise AssertionError("the driver has ended before its job could be stopped")


def _parent(pid: int) -> int:
    try:
        return parent_of(pid)
    except OSError:
        return 0


def go_through(cell: Cell, directory: Path, master: str, patience_s: float) -> None:
    """Run one cell, and compare its output. Raises AssertionError when it does not come to an end."""
    driver = Driver(cell, directory, master, patience_s)
    try:
        _drive(driver, cell, directory, patience_s)
    finally:
        driver.end_programs()
    found = ds.dataset(files_of(directory / "out"), format="parquet").to_table()["n"]
    values = sorted(pa.chunked_array(found).to_pylist())
    if values != list(range(ROWS)):
        missing, twice = len(set(range(ROWS)) - set(values)), len(values) - len(set(values))
        cell.problem = f"{missing} rows are missing, {twice} are there twice"
    elif cell.starts > STARTS.get(cell.fault, 1):
        cell.problem = f"the output is right, but only after {cell.starts} starts"


def _drive(driver: Driver, cell: Cell, directory: Path, patience_s: float) -> None:
    driver.start()
    _wait(lambda: bool(driver.done()) or driver.has_ended, patience_s)
    driver.note_how_far()
    if cell.fault == "savepoint":
        path = driver.stop_with_savepoint()
        code = driver.end()
        assert not code, f"the driver ends with {code}: {cell.said}"
        driver.end_programs()
        (directory / "job-is-done").unlink(missing_ok=True)
        shutil.rmtree(directory / "ha", ignore_errors=True)
        driver.start(3, path)
    elif cell.fault != "straight":
        _wait(lambda: driver.has_ended or driver.kill(cell.fault), patience_s)
    while driver.end():
        assert cell.starts < STARTS_MAX, f"the driver ends again and again: {cell.said[-1]}"
        driver.start()


def files_of(out: Path) -> list[str]:
    """The files that count. Those of a streaming query are named in the log of Spark's file sink: an executor that is
    killed leaves others beside them, which Spark does not read either."""
    logs = list(out.glob("_spark_metadata/[0-9]*"))
    if not logs:
        return sorted(str(path) for path in out.glob("*.parquet"))
    lines = {line for log in logs for line in log.read_text().splitlines()[1:]}
    return sorted({str(json.loads(line)["path"]).removeprefix("file://") for line in lines})


def _wait(reached: Callable[[], bool], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline, "nothing goes on"
        time.sleep(POLL_S)


def run_cells(doors: Sequence[str], faults: Sequence[str], master: str, patience_s: float) -> list[Cell]:
    """All of them, one after the other."""
    cells = []
    for door in doors:
        for fault in faults:
            if (door, fault) in NOT_THERE:
                print(f"{door:<17} {fault:<12} not there: {NOT_THERE[door, fault]}", flush=True)
                continue
            cell = Cell(door, fault)
            directory = Path(tempfile.mkdtemp(prefix=f"snapline-{door}-{fault}-"))
            begun = time.monotonic()
            try:
                go_through(cell, directory, master, patience_s)
            except (AssertionError, OSError) as error:
                cell.problem = str(error).splitlines()[0]
            cell.seconds = time.monotonic() - begun
            cells.append(cell)
            print(cell, *cell.said, sep="\n    ", flush=True)
            if cell.problem:
                print(f"    kept: {directory}", flush=True)
            else:
                shutil.rmtree(directory, ignore_errors=True)
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; 0 when every output was equal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--doors", type=lambda text: tuple(text.split(",")), default=DOORS, help=",".join(DOORS))
    parser.add_argument("--faults", type=lambda text: tuple(text.split(",")), default=FAULTS, help=",".join(FAULTS))
    parser.add_argument(
        "--master", default=MASTER, help="of Spark, such as local-cluster[2,2,1024] or spark://..., or standalone"
    )
    parser.add_argument("--patience", type=float, default=600, help="seconds for one start of a driver")
    options = parser.parse_args(arguments)
    for name, given, known in (("door", options.doors, DOORS), ("fault", options.faults, FAULTS)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown {name} {', '.join(sorted(unknown))}: one of {', '.join(known)}")
    with ExitStack() as stack:
        master = options.master
        if master == STANDALONE:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="snapline-standalone-")))
            master = stack.enter_context(standalone_spark(directory, CORES))
        cells = run_cells(options.doors, options.faults, master, options.patience)
    equal = sum(not cell.problem for cell in cells)
    print(f"{equal} of {len(cells)} outputs are equal")
    return 0 if equal == len(cells) else 1


if __name__ == "__main__":
    sys.exit(main())
