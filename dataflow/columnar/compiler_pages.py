"""Gives back the pages of LLVM's file that loading kernels makes resident.

LLVM's library is needed to load a kernel from the cache and to compile one, never to run one: a process that has
loaded its kernels keeps some 70 MiB of it resident for nothing. The pages are the file's, unchanged: whoever loads or
compiles another kernel finds them in the system's cache of files, or the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

LIBRARY = "libllvmlite"
"""What the file's name begins with."""
SEGMENTS = Path("/proc/self/smaps")


def give_compiler_pages_back() -> int:
    """Give them back; returns how many bytes of addresses they lay at, 0 where the system does not tell or LLVM is
    not loaded."""
    given = 0
    with contextlib.suppress(OSError, AttributeError, ValueError):  # another system than Linux, or a /proc unlike its
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        with SEGMENTS.open() as lines:
            segments = list(unchanged_segments(lines, LIBRARY))
        for start, length in segments:
            if advise(start, length, mmap.MADV_DONTNEED) == 0:
                given += length
    return given


def unchanged_segments(smaps: Iterable[str], library: str) -> Iterator[tuple[int, int]]:
    """Start and length, in bytes, of each segment of the library that is the file's own in this process.

    Args:
        smaps: the lines of `/proc/PID/smaps`: a segment's addresses, rights and file, then a line for each figure.
        library: what the name of the library's file begins with.

    A segment that may be written to is none, nor one with a page that was changed when the library was loaded, as
    tables of addresses are: what was changed is nowhere else.

    Example:
        >>> lines = ["1000-3000 r-xp 0 0:0 1 /lib/libllvmlite.so", "Anonymous: 0 kB"]
        >>> list(unchanged_segments(lines, "libllvmlite"))
        [(4096, 8192)]
    """
    segment: tuple[int, int] | None = None
    for line in smaps:
        words = line.split()
        if words and not words[0].endswith(":"):
            start, _, end = words[0].partition("-")
            is_of_library = len(words) > 5 and Path(words[5]).name.startswith(library)
            is_unwritten = is_of_library and words[1][0] == "r" and words[1][1] == "-"
            segment = (int(start, 16), int(end, 16) - int(start, 16)) if is_unwritten else None
        elif segment and words and words[0] == "Anonymous:":
            if words[1] == "0":
                yield segment
            segment = None
