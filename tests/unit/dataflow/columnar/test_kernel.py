"""Kernels: compiled without a writable cache, loaded from one by later processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.columnar.gather import gather_array
from snapline.dataflow.columnar.kernel_compiler import COMPILING, KNOWN_NUMBA

MODULE = """
from snapline.dataflow.columnar.kernel import I64, kernel

@kernel(I64(I64))
def doubled(value):
    return 2 * value
"""
PROGRAM = "import tiny_kernels as m; print(m.doubled(21), sum(m.doubled.stats.cache_hits.values()))"


MORE = (("tripled", 3), ("negated", -1))


def run(directory: Path, **environment: str) -> list[str]:
    """Import the module in a process of its own; its answer, and how often numba's cache had it."""
    return run_said(directory, PROGRAM, **environment)[0]


def run_said(directory: Path, program: str, **environment: str) -> tuple[list[str], str]:
    """Run this in a process of its own, which finds the module; its answer, and what it said on standard error."""
    root = Path(__file__).resolve().parents[4]
    known = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR")}
    path = os.pathsep.join([str(directory), str(root)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**known, "PYTHONPATH": path, "HOME": str(directory), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_a_later_process_loads_what_an_earlier_one_compiled(tmp_path: Path) -> None:
    """The cache next to the module, as pip installs it, is used."""
    (tmp_path / "tiny_kernels.py").write_text(MODULE)

    assert run(tmp_path) == ["42", "0"]
    assert run(tmp_path) == ["42", "1"]


LOADS = PROGRAM + "; import sys; print('numba.np.linalg' in sys.modules)"


def test_what_is_compiled_is_loaded_without_all_that_numba_compiles_with(tmp_path: Path) -> None:
    """It was 83 modules, 16 MiB in each process, and half the time until the first kernel ran."""
    (tmp_path / "tiny_kernels.py").write_text(MODULE)

    assert run_said(tmp_path, LOADS)[0] == ["42", "0", "True"]
    assert run_said(tmp_path, LOADS)[0] == ["42", "1", "False"]


def test_a_loaded_kernel_and_one_that_is_compiled_beside_it_work(tmp_path: Path) -> None:
    """A kernel that calls the loaded one, too; numba imports then what it had left out."""
    (tmp_path / "tiny_kernels.py").write_text(MODULE)
    run(tmp_path)
    more = "@kernel(I64(I64))\ndef fourfold(value):\n    return doubled(doubled(value))\n"
    (tmp_path / "more_kernels.py").write_text(f"{MODULE.splitlines()[1]}\nfrom tiny_kernels import doubled\n{more}")

    said = run_said(tmp_path, f"{PROGRAM}; import more_kernels; print(more_kernels.fourfold(10))")[0]

    assert said == ["42", "1", "40"]


def test_the_locked_version_of_numba_is_one_whose_symbols_are_known() -> None:
    """Whoever locks a later one looks whether compiled code finds all that it names, and says so in the constant."""
    assert numba.version_info[:2] <= KNOWN_NUMBA


def test_without_a_place_for_the_cache_kernels_still_work(tmp_path: Path) -> None:
    """Neither next to the module nor in the home directory: compiled for this process, no error."""
    (tmp_path / "tiny_kernels.py").write_text(MODULE)
    (tmp_path / "__pycache__").write_text("in the way of the directory")

    assert run(tmp_path, HOME="/dev/null", XDG_CACHE_HOME="/dev/null/cache") == ["42", "0"]


def test_a_named_cache_directory_is_used(tmp_path: Path) -> None:
    """NUMBA_CACHE_DIR, for installations that nobody may write to."""
    module = tmp_path / "module"
    module.mkdir()
    (module / "tiny_kernels.py").write_text(MODULE)
    (module / "__pycache__").write_text("in the way of the directory")
    cache = str(tmp_path / "cache")

    assert run(module, NUMBA_CACHE_DIR=cache, HOME="/dev/null") == ["42", "0"]
    assert run(module, NUMBA_CACHE_DIR=cache, HOME="/dev/null") == ["42", "1"]


def test_a_damaged_cache_is_no_obstacle(tmp_path: Path) -> None:
    """A half-written entry is compiled again."""
    (tmp_path / "tiny_kernels.py").write_text(MODULE)
    run(tmp_path)
    for entry in (tmp_path / "__pycache__").glob("*.nb?"):
        entry.write_bytes(entry.read_bytes()[:10])

    assert run(tmp_path)[0] == "42"
    shutil.rmtree(tmp_path / "__pycache__")


WITHOUT_NUMBA = """
import sys
import snapline.dataflow.columnar.key_partition, snapline.taskmanager.operators.windows.window_factory
from snapline.taskmanager.state.batch_scope import number_slots
import snapline.dataflow.columnar.kernel as kernel
print("numba" in sys.modules)
kernel.compile_kernels_at_once()
import snapline.taskmanager.state.keyed_snapshot as later
print("numba" in sys.modules, number_slots._made is not None, type(later._true_rows).__name__)
"""


def test_numba_is_loaded_for_kernels_that_run_and_by_who_hosts_task_managers() -> None:
    """A driver or a local run imports operators without it; a TaskManager compiles before the first batch."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, check=False)

    said = done.stderr.replace(f"{COMPILING}\n", "")  # where no process has compiled them before
    assert (done.stdout, said) == ("False\nTrue True CPUDispatcher\n", "")


IMPATIENT = """
import snapline.dataflow.columnar.kernel_compiler as compiler
compiler.TELL_AFTER_SECONDS, compiler.LOADING_SECONDS = 1e-9, 0.0
import tiny_kernels as m
print(m.doubled(21), m.tripled(14), m.negated(-42))
"""


def test_who_waits_for_the_compiler_is_told_so_once(tmp_path: Path) -> None:
    """The first job after an installation compiled for most of a minute, and said nothing."""
    kernels = [MODULE, *(f"@kernel(I64(I64))\ndef {name}(value):\n    return {by} * value\n" for name, by in MORE)]
    (tmp_path / "tiny_kernels.py").write_text("\n".join(kernels))

    assert (["42", "42", "42"], f"{COMPILING}\n") == run_said(tmp_path, IMPATIENT)
    assert (["42", "1"], "") == run_said(tmp_path, PROGRAM)


COLUMNS = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-9, 9)),
    (pa.float32(), st.integers(0, 9)),
    (pa.timestamp("ns"), st.integers(0, 9)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=40)),
    (pa.large_binary(), st.binary(max_size=20)),
    (pa.binary(2), st.just(b"ab")),
    (pa.struct([("a", pa.int64())]), st.fixed_dictionaries({"a": st.integers(0, 9)})),
]


@pytest.mark.parametrize(("data_type", "values"), COLUMNS, ids=lambda value: str(value)[:20])
@given(data=st.data())
def test_gathering_is_take(data_type: pa.DataType, values: st.SearchStrategy[object], data: st.DataObject) -> None:
    """Slices, nulls and every width."""
    element = data.draw(st.sampled_from([values, st.one_of(st.none(), values)]))
    column = pa.array(data.draw(st.lists(element, min_size=1, max_size=20)), data_type)
    column = column.slice(data.draw(st.integers(0, len(column) - 1)))
    rows = np.array(data.draw(st.lists(st.integers(0, len(column) - 1), max_size=20)), np.int32)

    got = gather_array(column, rows)

    got.validate(full=True)
    assert got.equals(column.take(pa.array(rows)))
