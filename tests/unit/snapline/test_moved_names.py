"""An old job is told in one line where a name is now."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import snapline
from snapline.moved_names import FORMER_ROOMS, MOVED_NAMES

ROOT = Path(__file__).resolve().parents[3]


def run(directory: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A job script that lies in a directory of its own; only installed packages and those beside it can be imported."""
    script = directory / "job.py"
    script.write_text(program)
    return subprocess.run(
        [sys.executable, *options, str(script)], capture_output=True, text=True, cwd=directory, timeout=100, check=False,
        env={"PYTHONPATH": str(ROOT / "deploy" / "editable")},
    )  # fmt: skip


@pytest.mark.parametrize("room", sorted(FORMER_ROOMS))
def test_an_old_job_that_imports_a_room_gets_one_line_with_the_new_place(tmp_path, room):
    """Exit code 1, no traceback, however deep the module was."""
    done = run(tmp_path, f"import snapline\nfrom {room}.functions import ProcessFunction\n")
    (line,) = done.stderr.splitlines()
    assert (1, f"snapline: no module named '{room}': Snapline's is snapline.{room} now") == (
        done.returncode,
        line.partition(", and")[0],
    )


def test_snapline_run_says_it_whatever_the_job_imports_first(tmp_path):
    """Snapline itself was imported before the job, so the order of the job's imports does not matter."""
    script = tmp_path / "job.py"
    script.write_text("from dataflow.functions import ProcessFunction\nimport snapline\n")
    done = subprocess.run(
        [sys.executable, "-m", "snapline.cli", "run", str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=100,
        check=False, env={"PYTHONPATH": str(ROOT / "deploy" / "editable")},
    )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert (1, True) == (done.returncode, "Snapline's is snapline.dataflow now" in line)


def test_a_package_of_the_users_with_a_former_name_is_the_users(tmp_path):
    """It is found before anybody says where the former one went."""
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "__init__.py").write_text("WHOSE = 'mine'\n")
    done = run(tmp_path, "import snapline\nfrom runtime import WHOSE\nprint(WHOSE)\n")
    assert ("mine\n", "") == (done.stdout, done.stderr)


def test_a_program_may_ask_whether_there_is_such_a_package(tmp_path):
    """`find_spec` answers None, and `import` raises what it always has for a package that is not there."""
    program = (
        "import importlib.util, snapline\nprint(importlib.util.find_spec('protos'))\n"
        "try:\n    import protos\nexcept ModuleNotFoundError as error:\n    print(error.name)\n"
    )
    assert "None\nprotos\n" == run(tmp_path, program).stdout


def test_an_old_job_that_imports_a_former_name_gets_one_line_with_the_new_one(tmp_path):
    """Exit code 1, no traceback."""
    done = run(tmp_path, "from snapline import StreamExecutionEnvironment, sum_\n")
    said = "snapline: snapline.sum_ is called snapline.sum now: import snapline as sl, and say sl.sum\n"
    assert (1, said) == (done.returncode, done.stderr)


def test_a_moved_name_leads_to_one_that_there_is():
    """No hint names another former name, or one that nobody exports."""
    assert [] == [new for new in MOVED_NAMES.values() if new in MOVED_NAMES or not hasattr(snapline, new)]


def test_what_was_never_there_is_still_an_attribute_error():
    """`hasattr` and tools that look around rely on it."""
    assert not hasattr(importlib.import_module("snapline"), "no_such_name")
