"""Running a user's job script inside this process: for `snapline run`, and for `snapline plan`, which only wants the
job.

The script runs as `__main__` with its own arguments. For a plan, `execute()` hands over the translation instead of
running it, and ends the script there, as Flink's OptimizerPlanEnvironment does: what would come after it relies on a
job that ran.
"""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.dataflow.errors import JobDefinitionError, SnaplineError
from snapline.execution import ProgramAborted, translating_only
from snapline.reporting import ScriptFailed

if TYPE_CHECKING:
    from snapline.dataflow.graph.translation import Translation

THREAD_CHECK_S = 0.1
"""How often, in seconds, `translate_script` looks whether one of the script's threads has executed."""


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run it to its end. SnaplineErrors that it raises are raised, other errors become ScriptFailed."""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except (SnaplineError, ProgramAborted, SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ScriptFailed(script, error) from error


def translate_script(script: Path, arguments: Sequence[str]) -> Translation:
    """The job that the script would execute first. What it prints goes to standard error: on standard output stands the
    answer of a command. Raises JobDefinitionError when it executes none."""
    before = set(threading.enumerate())
    with translating_only() as translations, redirect_stdout(sys.stderr):
        try:
            run_script(script, arguments)
            _wait_for_threads(before, translations)
        except ProgramAborted:
            pass
        except SystemExit as error:
            if not translations:
                how = f"ended with exit code {error.code}" if error.code else "ended"
                raise JobDefinitionError(f"{script} {how} before it called execute()") from None
    if not translations:
        raise JobDefinitionError(f"{script} does not call execute(): there is no job to plan")
    return translations[0]


def _wait_for_threads(before: set[threading.Thread], translations: list[Translation]) -> None:
    """Wait as Python does at its end, until the script's threads are over or one of them has executed: a job may be
    executed on a thread that nobody joins."""
    while not translations:
        running = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
        if not running:
            return
        running[0].join(THREAD_CHECK_S)
