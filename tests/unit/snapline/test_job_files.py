"""Files, archives and packages that travel with a job: checked when they are added, found where the job runs."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.errors import JobDefinitionError


@pytest.fixture
def env() -> sl.StreamExecutionEnvironment:
    return sl.StreamExecutionEnvironment.get_execution_environment()


def wheel(directory: Path) -> Path:
    """A package that nobody has installed."""
    path = directory / "rates_of_a_test-1.0-py3-none-any.whl"
    info = "rates_of_a_test-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rates_of_a_test.py", "RATE = 7\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: rates-of-a-test\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "rates_of_a_test.py,,\n")
    return path


def everything(env: sl.StreamExecutionEnvironment, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add one of each to a job."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
    monkeypatch.syspath_prepend(directory)  # so that the path is put back
    (directory / "factor.txt").write_text("10")
    with zipfile.ZipFile(directory / "model.zip", "w") as archive:
        archive.writestr("weights/one.txt", "100")
    (directory / "requirements.txt").write_text(f"--no-index\n{wheel(directory)}\n")
    env.add_file(directory / "factor.txt").add_archive(directory / "model.zip", "model")
    env.add_requirements(directory / "requirements.txt").add_requirements(directory / "requirements.txt")


def computed(row: dict[str, int]) -> dict[str, int]:
    """Use all of them in a function."""
    import rates_of_a_test  # type: ignore[import-not-found]

    weight = (sl.job_file("model") / "weights" / "one.txt").read_text()
    return {"n": row["n"] * int(sl.job_file("factor.txt").read_text()) + int(weight) + rates_of_a_test.RATE}


def test_a_local_run_has_all_of_them(env, tmp_path, monkeypatch):
    """Where they lie, the archive unpacked."""
    everything(env, tmp_path, monkeypatch)
    rows = env.from_collection([{"n": 1}, {"n": 2}]).map(computed).execute_and_collect(local=True)
    assert sorted(row["n"] for row in rows) == [117, 127]


def test_files_of_two_jobs_may_have_one_name(tmp_path):
    """Each job that runs here has its own, whichever was added last, and an archive is unpacked once."""
    jobs = []
    for number in ("1", "2"):
        directory = tmp_path / number
        directory.mkdir()
        (directory / "factor.txt").write_text(number)
        with zipfile.ZipFile(directory / "model.zip", "w") as archive:
            archive.writestr("weight.txt", f"{number}0")
        env = sl.StreamExecutionEnvironment.get_execution_environment()
        env.add_file(directory / "factor.txt").add_archive(directory / "model.zip", "model")
        jobs.append(env)
    places = []
    for env, expected in zip([*jobs, jobs[0]], [11, 22, 11], strict=True):
        rows = env.from_collection([{"n": 0}], uid="rows").map(
            lambda row: {
                "n": int(sl.job_file("factor.txt").read_text()) + int((sl.job_file("model") / "weight.txt").read_text())
            }
        )
        assert [row["n"] for row in rows.execute_and_collect(local=True)] == [expected]
        places.append(sl.job_file("model"))
    assert places[0] == places[2] != places[1]


def test_what_cannot_travel_is_said_at_once(env, tmp_path):
    """A file that is not there, a name that is taken, what Spark does not unpack, what pip does not find."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_text("")
    env.add_file(tmp_path / "a" / "same")
    with pytest.raises(JobDefinitionError, match=r"there is no file .*/none"):
        env.add_file(tmp_path / "none")
    with pytest.raises(JobDefinitionError, match=r"a/same has the name 'same' already; rename one of them"):
        env.add_file(tmp_path / "b" / "same")
    with pytest.raises(JobDefinitionError, match=r"Spark unpacks \.tar\.gz"):
        env.add_archive(tmp_path / "b" / "same", "other")
    (tmp_path / "requirements.txt").write_text("--no-index\nno-such-package-here\n")
    with pytest.raises(
        JobDefinitionError, match="pip says ERROR: No matching distribution found for no-such-package-here"
    ):
        env.add_requirements(tmp_path / "requirements.txt")
    with pytest.raises(JobDefinitionError, match=r"job_file\('unknown'\): nothing of that name came with the job"):
        sl.job_file("unknown")


def test_a_service_refuses_what_its_task_managers_cannot_get(env, tmp_path):
    """They have started long before; nothing is connected to."""
    (tmp_path / "rates.csv").write_text("")
    env.add_file(tmp_path / "rates.csv").configure("jobmanager.rpc.address", "127.0.0.1:1")
    env.from_collection([{"n": 1}]).print()
    with pytest.raises(
        JobDefinitionError, match=r"'rates.csv' was added to a job for a coordinator that runs as a service"
    ):
        env.execute("refused")


@pytest.mark.parametrize("threads", [1, 2])
def test_files_of_jobs_that_run_at_one_time_may_have_one_name(tmp_path, threads):
    """The first one read what the second one had brought from its start on."""
    jobs = []
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "factor.txt").write_text(number)
        env = sl.StreamExecutionEnvironment.get_execution_environment().add_file(tmp_path / number / "factor.txt")
        rows = env.from_collection([{"n": n} for n in range(20_000)], uid="rows")
        factors = rows.map_batches(lambda batch: pa.record_batch({"n": [int(sl.job_file("factor.txt").read_text())]}))
        jobs.append(iter(factors.execute_and_collect(local=True, threads=threads)))

    assert [next(job)["n"] for job in jobs] == [1, 2]
    assert [{row["n"] for row in job} for job in jobs] == [{1}, {2}]


class Factor(sl.SourceFunction):
    """Says again and again what the file of its job has."""

    def run(self, context: sl.SourceContext) -> None:
        for _ in range(3):
            context.collect({"n": int(sl.job_file("factor.txt").read_text())})

    def cancel(self) -> None:
        """It ends by itself."""


def test_a_source_function_finds_the_files_of_its_own_job(tmp_path: Path) -> None:
    """Its thread knew of no job, and took the file of the one that had been started last."""
    jobs = []
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "factor.txt").write_text(number)
        env = sl.StreamExecutionEnvironment.get_execution_environment().add_file(tmp_path / number / "factor.txt")
        factors = env.add_source(Factor(), uid="factors", schema=pa.schema([("n", pa.int64())]))
        jobs.append(factors.execute_and_collect(local=True, limit=3))

    assert [[row["n"] for row in job] for job in jobs] == [[1, 1, 1], [2, 2, 2]]
