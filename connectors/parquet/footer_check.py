"""Whether Arrow can look at the column chunks of a footer without ending the process.

For a footer that contradicts itself, `FileMetaData.row_group(i).column(j)` does not raise: the exception of its C++
ends the process. Everything else that Arrow does with such a footer raises in order. So a copy of this process looks
first, and the original hears how that ended. Linux only; elsewhere footers are believed.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

from snapline.dataflow.errors import ConnectorError

LONGEST_LOOK_SECONDS = 60
"""A copy that takes longer is ended, and the footers are believed."""
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
        if not died_of:
            return
    url = urls[max(0, said.count(_NEXT) - 1)]
    why = said.rpartition("what():")[2].partition("\n")[0].strip(f" {_NEXT}") or signal.strsignal(died_of)
    raise ConnectorError(
        f"cannot read {url}: its footer contradicts itself ({why}), so the file is damaged: write it anew, or leave it out"
    )


def _copy_looks(files: int, look: Callable[[int], object]) -> tuple[str, int]:
    """What a copy said, and the signal that ended it, 0 for none and for one that took too long."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        # A fork beside threads is warned of; the copy takes none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        copy = os.fork()
    if not copy:
        _look_and_exit(files, look, write_end)
    os.close(write_end)
    try:
        said, has_ended = _heard(read_end, LONGEST_LOOK_SECONDS)
    finally:
        os.close(read_end)
    if not has_ended:
        os.kill(copy, signal.SIGKILL)
    _, status = os.waitpid(copy, 0)
    return said, os.WTERMSIG(status) if os.WIFSIGNALED(status) and has_ended else 0


def _heard(read_end: int, seconds: float) -> tuple[str, bool]:
    """What the copy says within this time, and whether it has ended then: one that was forked while another thread held
    a lock may wait for it forever."""
    until, heard = time.monotonic() + seconds, b""
    readable = select.poll()
    readable.register(read_end, select.POLLIN)
    while readable.poll(max(0.0, until - time.monotonic()) * 1000):
        piece = os.read(read_end, 1 << 16)
        if not piece:
            return heard.decode(errors="replace"), True
        heard += piece
    return heard.decode(errors="replace"), False


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
        signal.alarm(2 * LONGEST_LOOK_SECONDS)  # should the original be gone then
        for number in range(files):
            os.write(2, _NEXT.encode())
            with suppress(Exception):  # which it raises in the original as well
                look(number)
    finally:
        os._exit(0)
