"""What the stack of a task's thread says: whose code it is in, and where.

Frames come as `function (file:line)`, outermost first. What the engine has called last decides: everything below is the
user's function or a library that it uses. No thread is looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from snapline.dataflow.ids import ExecutionAttemptID
from snapline.dataflow.wire.messages import ThreadDump, ThreadStack

_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")
_ENGINE = re.compile(r"/snapline/(?!.*/(?:tests|examples)/)")
_CONNECTORS = "/connectors/"
_STORAGE = ("/runtime/storage/", "/taskmanager/snapshots/", "/connectors/shared/storage")
_OPERATORS = "/taskmanager/operators/"
_IDLE_POOL = "/concurrent/futures/thread.py"
_WAITING = ("/taskmanager/threads/turns", "/taskmanager/threads/task_thread")
MAX_SHOWN = 25
"""Frames of a finding; the innermost ones."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread is, and in whose code."""

    kind: str
    """`user code`, `connector`, `storage`, `loading` (of a library), `engine` or `waiting`."""
    where: str
    """One frame in words; empty: nothing to say."""
    stack: tuple[str, ...]
    share: float = 1.0
    """How many of the looks at the thread found it exactly here."""
    waits_for: str = ""
    """What the thread waits for: `lock`, `answer`, or nothing."""


def place_of(stacks: Iterable[ThreadStack]) -> Place | None:
    """Where the thread of one task was seen most often while it was looked at; None: it was not seen."""
    seen = sorted(stacks, key=lambda stack: stack.count, reverse=True)
    total = sum(stack.count for stack in seen)
    if not total:
        return None
    working = [stack for stack in seen if read_frames(stack.frames).kind != "waiting"]
    most = working[0] if working else seen[0]
    found = read_frames(most.frames)
    same = sum(stack.count for stack in seen if read_frames(stack.frames).where == found.where)
    return Place(found.kind, found.where, found.stack, same / total, most.waits_for)


def stacks_by_task(dumps: Iterable[ThreadDump]) -> dict[tuple[str, int], list[ThreadStack]]:
    """The stacks of the threads that work for a task, by vertex and subtask."""
    found: dict[tuple[str, int], list[ThreadStack]] = {}
    for dump in dumps:
        for stack in dump.stacks:
            if stack.attempt_id is not None:
                key = (str(stack.attempt_id.vertex_id), stack.attempt_id.subtask_index)
                found.setdefault(key, []).append(stack)
    return found


def of_attempts(
    dumps: Iterable[ThreadDump], attempts: Collection[ExecutionAttemptID], *, with_process: bool
) -> list[ThreadDump]:
    """The dumps without the threads that work for other attempts, maybe of other jobs, even of one that has the same
    vertices; `with_process`: with those of the process itself."""

    def is_shown(stack: ThreadStack) -> bool:
        return with_process if stack.attempt_id is None else stack.attempt_id in attempts

    return [replace(dump, stacks=tuple(filter(is_shown, dump.stacks))) for dump in dumps]


def writing_of(dumps: Iterable[ThreadDump]) -> Place | None:
    """Where a thread that works for no task writes snapshots; None: none was seen to."""
    stacks = [stack for dump in dumps for stack in dump.stacks if stack.attempt_id is None]
    for stack in sorted(stacks, key=lambda stack: stack.count, reverse=True):
        place = read_frames(stack.frames)
        files = [_file(frame) for frame in stack.frames]
        if place.kind != "waiting" and any(part in file for file in files for part in _STORAGE):
            innermost = next(n for n in reversed(range(len(files))) if any(part in files[n] for part in _STORAGE))
            if _IDLE_POOL not in files[-1]:
                return Place("storage", _words(stack.frames[innermost]), place.stack)
    return None


def is_own(frame: str) -> bool:
    """Whether a frame lies in a file of the user, and not in the engine or a library."""
    file = _file(frame)
    return bool(file) and file != "?" and not _is_engine(file) and not any(part in file for part in _LIBRARIES)


def words_of_frame(frame: str) -> str:
    """What is said of a frame: its name, and the file without its directories."""
    return _words(frame)


def read_frames(frames: Sequence[str]) -> Place:
    """Where a thread with this stack is."""
    files = [_file(frame) for frame in frames]
    last_engine = max((n for n, file in enumerate(files) if _is_engine(file)), default=-1)
    shown = tuple(frames[-MAX_SHOWN:])
    if (last_engine >= 0 and last_engine == len(frames) - 1) or last_engine < 0:
        innermost = files[-1] if files else ""
        kind = "waiting" if any(part in innermost for part in _WAITING) else "engine"
        return Place(kind, _words(frames[-1]) if frames else "", shown)
    engine_file = files[last_engine]
    below = list(zip(frames, files, strict=True))[last_engine + 1 :]
    if below[0][1].startswith("<frozen importlib"):
        return Place("loading", _words(below[0][0]), shown)
    own = [frame for frame, file in below if not any(part in file for part in _LIBRARIES)]
    if any(part in engine_file for part in _WAITING):
        return Place("waiting", "", shown)
    if any(part in file for file in files for part in _STORAGE):
        return Place("storage", _words(frames[-1]), shown)
    if own:
        return Place("user code", _words(own[-1]), shown)
    if any(_CONNECTORS in file for file in files):
        return Place("connector", _words(frames[-1]), shown)
    return Place("user code" if _OPERATORS in engine_file else "engine", _words(frames[-1]), shown)


def _is_engine(file: str) -> bool:
    in_library = any(part in file for part in _LIBRARIES) and "/site-packages/snapline/" not in file
    return not in_library and _ENGINE.search(file) is not None


def _file(frame: str) -> str:
    found = _FRAME.match(frame)
    return found["file"] if found is not None else ""


def _words(frame: str) -> str:
    """`function (job.py:17)`: the path is in the stack."""
    found = _FRAME.match(frame)
    if found is None:
        return frame
    return f"{found['function']} ({found['file'].rsplit('/', 1)[-1]}:{found['line']})"
