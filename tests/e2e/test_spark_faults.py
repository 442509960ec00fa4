"""What Spark does to its applications: drivers die, executors are decommissioned, taken back, too few, or started
twice."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from tests.e2e.programs import ROOT, environment, environment_settings, marked, python, run, snapline, wait_until_gone
from tests.e2e.test_spark import FINISHED, SPARK_SUBMIT, assert_right
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.cluster import LocalCluster, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
FLIGHTS_PY = ROOT / "examples" / "flights.py"
OBSERVED_FLIGHTS_PY = ROOT / "tests" / "e2e" / "observed_flights.py"
SMALL = ("spark.executor.memory=512m", "spark.ui.enabled=false", "spark.snapline.log.level=WARNING")
PATIENCE_SECONDS = 180.0


def test_a_killed_driver_takes_everything_with_it_and_the_next_one_goes_on(flights, tmp_path):
    """No coordinator, TaskManager or Java stays; the job, submitted again, starts from its latest checkpoint."""
    mark = uuid.uuid4().hex
    output = tmp_path / "out"
    command = python(FLIGHTS_PY, "--input", flights, "--output", output, "--rows-per-second", "4000")
    settings: dict[str, Any] = environment_settings(
        {
            "execution.checkpointing.interval": "300 ms",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "high-availability.type": "embedded",
            "high-availability.storageDir": str(tmp_path / "ha"),
        }
    )
    variables: dict[str, Any] = {**settings, "MASTER": "local-cluster[2,1,1024]"}
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen(
            [str(part) for part in command], env=environment(mark, **variables), cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: any(output.glob("*/*.parquet")), "output", PATIENCE_SECONDS)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert wait_until_gone(mark) == {}, (tmp_path / "log").read_text()

    done = run(command, cwd=tmp_path, **variables)

    assert done.code == 0, done.err
    found = re.fullmatch(
        r"flights: FINISHED in [\d.]+ s: ([\d,]+) rows read(?: \(those after a restart twice\))?, \d+ checkpoints, \d+ restarts\n",
        done.out,
    )
    assert found is not None, done.out
    assert int(found[1].replace(",", "")) < 40_000, "it began anew"
    assert_right(flights, output)


@pytest.mark.rare
@pytest.mark.parametrize(("executors", "is_drained"), [(3, True), (2, False)], ids=["spare", "full"])
def test_tasks_leave_an_executor_that_is_decommissioned_before_it_ends(
    flights: Path, tmp_path: Path, executors: int, *, is_drained: bool
) -> None:
    """By a rescale, which is no restart: onto a TaskManager that is started in its stead where Spark has a core. Where
    it has none, nothing can leave, the log says so, and the job restarts once the executor is killed, as after any
    loss."""
    mark = uuid.uuid4().hex
    output = tmp_path / "out"
    command = python(FLIGHTS_PY, "--input", flights, "--output", output, "--rows-per-second", "2000")
    settings: dict[str, Any] = environment_settings(
        {
            "execution.checkpointing.interval": "300 ms",
            "taskmanager.instances": "2",
            "log.level": "INFO",
        }
    )
    options = {
        "spark.decommission.enabled": "true",
        "spark.executor.decommission.forceKillTimeout": "60s" if is_drained else "5s",
    }
    submit = " ".join(f"--conf {key}={value}" for key, value in options.items())
    variables: dict[str, Any] = {
        **settings,
        "MASTER": f"local-cluster[{executors},1,1024]",
        "PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell",
    }
    with (tmp_path / "out.log").open("wb") as out, (tmp_path / "err.log").open("wb") as err:
        driver = subprocess.Popen(
            [str(part) for part in command], env=environment(mark, **variables), cwd=tmp_path, stdout=out, stderr=err
        )
    said = tmp_path / "err.log"
    try:
        wait_until(lambda: any(output.glob("*/*.parquet")), "output", PATIENCE_SECONDS)
        java = marked(mark, "CoarseGrainedExecutorBackend")
        victim = next(pid for pid in sorted(java) if psutil.Process(pid).children())
        psutil.Process(victim).send_signal(signal.SIGPWR)
        line = "has left an executor" if is_drained else "cannot be drained yet"
        wait_until(lambda: line in said.read_text(), line, PATIENCE_SECONDS)
        assert driver.wait(PATIENCE_SECONDS) == 0, said.read_text()
    finally:
        driver.kill()
        driver.wait()
    assert wait_until_gone(mark) == {}
    (restarts,) = re.findall(r"(\d+) restarts", (tmp_path / "out.log").read_text())
    assert (int(restarts) == 0) is is_drained, said.read_text()
    assert_right(flights, output)


def observed(*options: str | Path, says: str = FINISHED, **variables: Any) -> dict[str, Any]:
    """What a driver says that it saw, by spark-submit with these options."""
    command = [SPARK_SUBMIT, *(option for each in SMALL for option in ("--conf", each)), *options]
    done = run(command, cwd=Path(str(options[-1])).parent, PYTHONPATH=str(ROOT), **variables)
    assert done.code == 0, done.err
    assert re.search(says, done.out), done.out + done.err
    seen: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return seen


@pytest.mark.rare
def test_idle_executors_are_taken_back_and_task_managers_keep_theirs(flights, standalone, tmp_path):
    """Dynamic allocation: of two executors, one has the only TaskManager and is never idle, however little its tasks
    do; the other one goes."""
    output = tmp_path / "out"
    settings: dict[str, Any] = environment_settings({"taskmanager.instances": "1"})
    seen = observed(
        *("--master", standalone.master, "--conf", "spark.executor.cores=1"),
        *("--conf", "spark.dynamicAllocation.enabled=true", "--conf", "spark.dynamicAllocation.initialExecutors=2"),
        *("--conf", "spark.dynamicAllocation.shuffleTracking.enabled=true"),
        *("--conf", "spark.dynamicAllocation.executorIdleTimeout=4s"),
        *(OBSERVED_FLIGHTS_PY, "--input", flights, "--rows-per-second", "4000", "--output", output),
        **settings,
    )
    both = seen["executors"].index(2)
    assert 1 in seen["executors"][both:], seen
    assert_right(flights, output)


@pytest.mark.rare
def test_a_second_start_by_speculation_disturbs_nobody(flights, standalone, tmp_path):
    """A session of the user's that starts copies of slow tasks, on another host: the copy waits, the TaskManager lives
    on."""
    output = tmp_path / "out"
    settings: dict[str, Any] = environment_settings(
        {"taskmanager.instances": "2", "execution.checkpointing.interval": "300 ms"}
    )
    with standalone.worker("other-host", "127.0.0.2"):
        seen = observed(
            *("--master", standalone.master, "--conf", "spark.speculation=true"),
            *("--conf", "spark.speculation.interval=100ms", "--conf", "spark.speculation.task.duration.threshold=3s"),
            *(OBSERVED_FLIGHTS_PY, "--input", flights, "--rows-per-second", "3000", "--output", output),
            **settings,
        )
    assert seen["copies"] == 2, "Spark has started no copy: nothing was tested"
    assert_right(flights, output)


@pytest.mark.rare
def test_a_speculative_copy_of_a_resumable_partition_goes_on_from_its_checkpoint(standalone, tmp_path):
    """Of an attempt that stands still, on another host: the rows are right, nothing is mixed, and a second action finds
    both partitions finished."""
    program = ROOT / "tests" / "e2e" / "speculated_scores.py"
    with standalone.worker("other-host", "127.0.0.2"):
        seen = observed(
            *("--master", standalone.master, "--conf", "spark.speculation=true"),
            *("--conf", "spark.speculation.interval=100ms", "--conf", "spark.speculation.quantile=0.5"),
            *("--conf", "spark.executor.cores=1", program, tmp_path),
            says="right",
        )
    assert seen == {
        "right": True,
        "copies": True,
        "finished": [[0, 2_000, True], [1, 2_000, True]],
        "again": 4_000,
    }


@pytest.mark.rare
def test_more_slots_than_spark_can_give_are_named_with_both_numbers(flights, tmp_path):
    """Two TaskManagers on one core: the log says so while the job waits, and the failure says it again."""
    settings: dict[str, Any] = environment_settings(
        {
            "parallelism.default": "2",
            "taskmanager.instances": "2",
            "slot.request.timeout": "25 s",
            "restart-strategy.type": "none",
        }
    )
    done = run(
        python(FLIGHTS_PY, "--input", flights, "--output", tmp_path / "out"),
        cwd=tmp_path,
        MASTER="local[1]",
        **settings,
    )
    assert done.code == 1, done.out + done.err
    (said,) = [json.loads(line) for line in done.err.splitlines() if "more slots than Spark gives" in line]
    assert (said["context"]["required"], said["context"]["available"]) == (2, 1)
    assert "no free core for the others" in said["context"]["reason"]
    (line,) = [line for line in done.errors if not line.startswith("{")]
    assert "needs 2 slots and got 1 within 25000 ms" in line and "no free core for the others" in line, line


ONE_EXECUTOR_PER_WORKER = "--conf spark.executor.cores=1 --conf spark.executor.memory=1200m pyspark-shell"
"""Of the 2 GiB of a worker."""


@contextmanager
def task_managers(address: str, master: str, directory: Path) -> Iterator[None]:
    """`snapline taskmanagers`: an application that wants two of one slot each, and has what Spark gives it."""
    mark = uuid.uuid4().hex
    command = snapline("taskmanagers", "--coordinator", address, "--instances", "2", "--slots", "1")
    variables = environment(mark, MASTER=master, PYSPARK_SUBMIT_ARGS=ONE_EXECUTOR_PER_WORKER)
    with (directory / "taskmanagers.log").open("wb") as log:
        application = subprocess.Popen(
            [str(part) for part in command], env=variables, cwd=directory, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        application.send_signal(signal.SIGTERM)
        code = application.wait(60)
        print((directory / "taskmanagers.log").read_text())
    assert code == 0
    assert wait_until_gone(mark) == {}


@pytest.mark.rare
def test_a_reactive_job_follows_what_spark_grants(standalone, tmp_path):
    """A worker comes, Spark starts an executor and a TaskManager there, and the job has a subtask more; the machine is
    lost, and the job goes on with one less. Every row is counted once."""
    output = tmp_path / "out"
    settings = {"jobmanager.adaptive-scheduler.resource-stabilization-timeout": "300 ms"}
    with (
        LocalCluster(tmp_path / "cluster", slots=()) as cluster,
        task_managers(cluster.address, standalone.master, tmp_path),
    ):
        job = cluster.environment(parallelism=1, scheduler_mode="reactive", **settings)
        arguments = ["--output", str(output), "--rate", "2000", "--parallelism", "1"]
        job_id = cluster.submit(build(job, arguments), "reactive")

        def runs_with(parallelism: int) -> None:
            def reached() -> bool:
                details = cluster.client.get_job(job_id)
                running = decode_job_status(details.overview.status) is JobStatus.RUNNING
                return running and {vertex.parallelism for vertex in details.vertices} == {parallelism}

            wait_until(reached, f"the job to have parallelism {parallelism}", PATIENCE_SECONDS)
            completed = cluster.client.list_checkpoints(job_id).counts.completed
            cluster.wait_for_checkpoints(job_id, completed + 1)

        runs_with(1)
        with standalone.worker("another") as worker:
            runs_with(2)
            executors = psutil.Process(worker.pid).children()
            for process in (worker, *executors):
                process.kill()
        runs_with(1)
        cluster.client.stop_with_savepoint(job_id)
    assert assert_exactly_once(output) > 0
