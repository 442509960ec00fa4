"""How errors reach a person: one line for what can be mended, the traceback of their own function, ours only when asked
for.

A job script that does not catch a SnaplineError ends as every Python program does, with exit code 1; only what is
printed is replaced, by a hook that hands everything else on to the one before.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.failures import USER_TRACEBACK

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT."""
TRACEBACK_VARIABLE = "SNAPLINE_TRACEBACK"
"""Set to anything: all tracebacks are printed."""


class ScriptFailed(SnaplineError):
    """A job's script has raised something that is not ours to explain; `theirs` begins with its own first frame."""

    def __init__(self, script: Path, cause: BaseException) -> None:
        """Frames above the script's are dropped; of one that cannot be compiled there are none."""
        super().__init__(f"{script} failed: {type(cause).__name__}: {cause}")
        where = cause.__traceback__
        while where is not None and where.tb_frame.f_code.co_filename != str(script):
            where = where.tb_next
        self.theirs = "".join(traceback.format_exception(type(cause), cause, where))


def tell(lines: str) -> None:
    """Write what somebody may want to know to standard error. Where it cannot be written, because whoever has read it
    is gone, say, or a disk is full, it is lost: the work that it is about goes on."""
    with suppress(OSError, ValueError):  # ValueError: the stream is closed
        sys.stderr.write(f"{lines}\n")


def print_interrupted(error: BaseException | None) -> None:
    """Somebody has pressed Ctrl-C, and need not read where; what was done about it, if the interrupt says so."""
    what = f": {error}" if error is not None and str(error) else ""
    sys.stderr.write(f"snapline: interrupted{what}\n")
    sys.stderr.flush()


def print_error(error: SnaplineError) -> None:
    """One line; the user's frames when a function of the user failed; all the rest with SNAPLINE_TRACEBACK=1."""
    from snapline.client import JobFailed  # with gRPC, which a script that fails early has not loaded
    from snapline.runtime.logs import harmless

    asked = bool(os.environ.get(TRACEBACK_VARIABLE))
    lines = []
    if isinstance(error, JobFailed) and error.failure is not None:
        told = error.failure.traceback
        if told and (asked or told.startswith(USER_TRACEBACK)):
            lines.append(told.rstrip())
    if isinstance(error, ScriptFailed):
        lines.append(error.theirs.rstrip())
    if asked:
        lines.append("".join(traceback.format_exception(error)).rstrip())
    sys.stderr.write(harmless("\n".join([f"snapline: {error}", *lines])) + "\n")
    sys.stderr.flush()


def print_errors_in_one_line() -> None:
    """From now on, in this process, for SnaplineErrors that nobody catches, and for Ctrl-C. May be called again."""
    before = sys.excepthook
    if getattr(before, "of_snapline", False):
        return

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if isinstance(error, SnaplineError):
            print_error(error)
        elif isinstance(error, KeyboardInterrupt) and not os.environ.get(TRACEBACK_VARIABLE):
            print_interrupted(error)
        else:
            before(kind, error, where)

    hook.of_snapline = True  # type: ignore[attr-defined]
    sys.excepthook = hook
