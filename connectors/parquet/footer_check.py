"""Whether Arrow can look at the column chunks of a footer without ending the process.

For a footer that contradicts itself, `FileMetaData.row_group(i).column(j)` does not raise: the exception of its C++
ends the process. Everything else that Arrow does with such a footer raises in order. So a copy of this process looks
first, and the original hears how that ended. Linux only; elsewhere footers are believed.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

from snapline.dataflow.errors import ConnectorError

LONGEST_LOOK_SECONDS = 60
"""A copy that takes longer is given up, and the footers are believed."""
COPIES = 3
"""So many have to be ended before a file is accused: another library's threads, which see that they are in a copy, may
end one as well."""


def require_sound(urls: Sequence[str], look: Callable[[int], object]) -> None:
    """Raise ConnectorError that names the first of the files of which `look`, called with its number, would end the
    process."""
    if sys.platform != "linux":
        return
    for _ in range(COPIES):
        said, died_of = _copy_looks(len(urls), look)
        if died_of in (0, signal.SIGALRM):
            return
    url = urls[max(0, said.count(_NEXT) - 1)]
    why = said.rpartition("what():")[2].partition("\n")[0].strip(f" {_NEXT}") or signal.strsignal(died_of)
    raise ConnectorError(
        f"cannot read {url}: its footer contradicts itself ({why}), so the file is damaged: write it anew, or leave it out"
    )


def _copy_looks(files: int, look: Callable[[int], object]) -> tuple[str, int]:
    """What a copy said, and the signal that ended it, 0 for none."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        # A fork beside threads is warned of; the copy takes none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        copy = os.fork()
    if not copy:
        _look_and_exit(files, look, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as said_by_copy:
        said = said_by_copy.read().decode(errors="replace")
    _, status = os.waitpid(copy, 0)
    return said, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


_NEXT = "\x00"
"""Said by the copy before each file."""


def _look_and_exit(files: int, look: Callable[[int], object], say_to: int) -> None:
    """In the copy: look at all of them; what C++ says at its end goes to the original."""
    try:
        gc.disable()
        os.dup2(say_to, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST_LOOK_SECONDS)
        for number in range(files):
            os.write(2, _NEXT.encode())
            with suppress(Exception):  # which it raises in the original as well
                look(number)
    finally:
        os._exit(0)
