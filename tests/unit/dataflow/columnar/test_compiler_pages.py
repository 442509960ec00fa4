"""The compiler's pages are given back once kernels are loaded, and found again by whoever compiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from snapline.dataflow.columnar import compiler_pages
from snapline.dataflow.columnar.compiler_pages import give_compiler_pages_back, unchanged_segments

SMAPS = """\
7f8a8a600000-7f8a8a602000 r--p 00000000 fe:00 53 /lib/libllvmlite.so
Size:                  8 kB
Anonymous:             0 kB
VmFlags: rd mr mw me sd
7f8a8a700000-7f8a8a704000 r-xp 00365000 fe:00 53 /lib/libllvmlite.so
Anonymous:             0 kB
7f8a8a800000-7f8a8a804000 r--p 09677000 fe:00 53 /lib/libllvmlite.so
Anonymous:             4 kB
7f8a8a900000-7f8a8a904000 rw-p 0983c000 fe:00 53 /lib/libllvmlite.so
Anonymous:             0 kB
7f8a8aa00000-7f8a8aa04000 r-xp 00000000 fe:00 54 /lib/libarrow.so
Anonymous:             0 kB
7f8a8ab00000-7f8a8ab04000 rw-p 00000000 00:00 0
Anonymous:             0 kB
"""

IN_A_TASK_MANAGER = """
import re, sys
import pyarrow as pa
from snapline.taskmanager import __main__ as process
from snapline.dataflow.columnar import compiler_pages
from snapline.dataflow.columnar.kernel import I64, kernel
from snapline.dataflow.columnar.key_partition import owners_of

def resident_kib():
    segments = re.split("^(?=[0-9a-f]+-)", open("/proc/self/smaps").read(), flags=re.MULTILINE)
    return sum(int(re.search(r"^Rss: +([0-9]+)", one, re.MULTILINE)[1]) for one in segments if "libllvmlite" in one)

give_back, process.give_compiler_pages_back = process.give_compiler_pages_back, lambda: 0
process.preload()
before = resident_kib()
give_back()
assert resident_kib() < before / 4, (before, resident_kib())
assert len(owners_of([pa.array(range(10))], 128, 2)) == 10, "a loaded kernel runs without the compiler's pages"
"""
AND_COMPILES = """
@kernel(I64(I64))
def doubled(value):
    return 2 * value
assert doubled(21) == 42, "another kernel is compiled"
"""


def test_segments_that_are_the_files_own() -> None:
    """What was written to, or may be, stays, and so does every other file."""
    assert list(unchanged_segments(SMAPS.splitlines(), "libllvmlite")) == [
        (0x7F8A8A600000, 0x2000),
        (0x7F8A8A700000, 0x4000),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what is resident")
def test_a_task_manager_that_has_loaded_its_kernels_keeps_little_of_the_compiler(tmp_path: Path) -> None:
    """Three quarters of what was resident are gone, kernels run, and one more is compiled."""
    program = tmp_path / "program.py"
    program.write_text(IN_A_TASK_MANAGER + AND_COMPILES)

    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr


def test_a_system_that_does_not_tell_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given back, and nothing fails."""
    monkeypatch.setattr(compiler_pages, "SEGMENTS", tmp_path / "smaps")

    assert give_compiler_pages_back() == 0
