"""One suite for the twin in memory and for files."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapline.dataflow.errors import StateError
from snapline.taskmanager.state.outside.segment_files import SegmentFiles
from snapline.taskmanager.state.outside.segment_space import MemorySegmentSpace, SegmentSpace


@pytest.fixture(params=["memory", "files"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> SegmentSpace:
    """Each of them, empty."""
    return MemorySegmentSpace() if request.param == "memory" else SegmentFiles(str(tmp_path / "below"))


def numbers(first: int, count: int) -> np.ndarray:
    return (np.arange(first, first + count) % 251).astype(np.uint8)


def test_what_was_written_is_read_where_it_was_written(space: SegmentSpace) -> None:
    """Piece by piece, up to the last byte, in several segments, and after the last write; the address stays."""
    segments = [space.new_segment(space.segment_bytes), space.new_segment(10_000)]
    for segment in segments:
        size, address = segment.data.nbytes, segment.data.ctypes.data
        segment.write(0, numbers(0, 24))
        segment.write(24, numbers(24, size - 24))
        segment.seal()
        assert address == segment.data.ctypes.data
        assert np.array_equal(numbers(0, size), segment.data)
    assert [space.segment_bytes, 10_000] == [segment.data.nbytes for segment in segments]


def test_a_segment_is_readable_as_long_as_somebody_refers_to_it(space: SegmentSpace) -> None:
    """Its bytes alone are enough, in another thread, when the space is gone."""
    segment = space.new_segment(8_192)
    segment.write(0, numbers(0, 8_192))
    data = segment.data
    del segment, space
    seen: list[bool] = []
    reader = threading.Thread(target=lambda: seen.append(np.array_equal(numbers(0, 8_192), data)))
    reader.start()
    reader.join()
    assert [True] == seen


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The error names the setting to change."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"file/below.* state\.backend\.rocksdb\.localdir"):
        SegmentFiles(str(tmp_path / "file" / "below"))


def test_a_full_disk_is_an_error_that_names_the_setting() -> None:
    """Writing fails, and the process goes on."""
    segment: Any = SegmentFiles("").new_segment(8_192)
    segment._file, file = os.open("/dev/full", os.O_WRONLY), segment._file
    with pytest.raises(StateError, match=r"No space left on device; set state\.backend\.rocksdb\.localdir"):
        segment.write(0, numbers(0, 8_192))
    os.close(file)


def test_files_have_no_name_and_go_with_who_refers_to_them(tmp_path: Path) -> None:
    """So a killed process leaves nothing; an open file is one descriptor, and none is left at the end."""
    before = set(Path("/proc/self/fd").iterdir())
    space = SegmentFiles(str(tmp_path))
    segments = [space.new_segment(8_192) for _ in range(3)]
    assert [] == list(tmp_path.iterdir())
    for segment in segments:
        segment.write(0, numbers(0, 100))
        segment.seal()
    assert len(set(Path("/proc/self/fd").iterdir()) - before) == 3
    del segments, segment
    assert set(Path("/proc/self/fd").iterdir()) - before == set()


def test_there_may_be_more_files_than_a_shell_permits_at_first(tmp_path: Path) -> None:
    """A soft limit of 1,024 files, as in most shells, was one of 32 GiB of state for TaskManagers that Spark hosts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 16, before[1]))
        space = SegmentFiles(str(tmp_path))
        segments = [space.new_segment(4_096) for _ in range(32)]
        assert len(segments) == 32
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
