"""What the threads of this process do: their stacks, once or sampled over some time; and what its memory is used for.

Decides how a stack is shown (outermost frame first, `function (file:line)`), how many frames and different stacks are
kept, and that at most so many samplings run at a time. Reads `sys._current_frames`, so a thread that is in a call
outside Python shows the line that called. Sampling costs a few tenths of a millisecond each time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from types import FrameType

from snapline.dataflow.ids import ExecutionAttemptID, ResourceID
from snapline.dataflow.wire.messages import RequestThreadDump, ThreadDump, ThreadStack
from snapline.runtime.logs import harmless
from snapline.runtime.recent_output import RecentOutput
from snapline.taskmanager.threads.heap_reading import HeapReading
from snapline.taskmanager.threads.waiting_calls import call_of, waits_for

MAX_FRAMES = 100
"""The innermost ones of a deep stack are shown."""
MAX_NAME = 500
"""Characters of a thread's name, and of a frame, that are shown."""
MAX_STACKS = 2_000
"""Different stacks of one answer; what comes after them is not counted."""
MAX_SAMPLINGS = 2
"""That run at a time in one process, and as many looks that last no time; what else is asked for meanwhile stays
unanswered."""
MAX_DURATION_MS = 600_000
DEFAULT_INTERVAL_MS = 10

TaskThreads = Callable[[], Mapping[int, tuple[str, ExecutionAttemptID]]]
"""Says which thread, by its identifier, works for which task."""


def stack_of(thread_id: int | None) -> tuple[str, ...]:
    """The frames of one thread, outermost first; nothing when it does not run."""
    frame = None if thread_id is None else sys._current_frames().get(thread_id)  # noqa: SLF001 - the documented way
    return _frames(frame)


def _frames(frame: FrameType | None) -> tuple[str, ...]:
    found: list[str] = []
    while frame is not None and len(found) < MAX_FRAMES:
        code = frame.f_code
        found.append(f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return tuple(reversed(found))


def _sayable(text: str) -> str:
    """The name of a thread or a frame, which a function can choose, as messages and terminals can carry it."""
    return harmless(text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}...")


class ThreadDumper:
    """Answers requests for the stacks of this process."""

    def __init__(
        self,
        resource_id: ResourceID,
        task_threads: TaskThreads,
        recent: RecentOutput,
        answer: Callable[[ThreadDump], object],
        change_level: Callable[[str], None],
    ) -> None:
        """`answer` gets each dump, on a thread of this one's. `recent` is what the process has written, and what
        `change_level` is told is the level of its log."""
        self._resource_id = resource_id
        self._task_threads = task_threads
        self._recent = recent
        self._answer = answer
        self._change_level = change_level
        self._free = {lasts: threading.Semaphore(MAX_SAMPLINGS) for lasts in (False, True)}
        """Whoever looks for minutes keeps nobody from a single look, or from the log."""
        self._stopping = threading.Event()
        self._threads: set[threading.Thread] = set()

    def dump(self, request: RequestThreadDump) -> None:
        """Look on a thread of its own, so that whoever asks goes on; not at all, where there is none left."""
        free = self._free[request.duration_ms > 0]
        if self._stopping.is_set() or not free.acquire(blocking=False):
            return
        thread = threading.Thread(target=self._work, args=(request,), name="snapline-stacks", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the host has no thread left
            self._threads.discard(thread)
            free.release()

    def close(self) -> None:
        """End what is under way, and wait for it."""
        self._stopping.set()
        for thread in list(self._threads):
            thread.join()

    def _work(self, request: RequestThreadDump) -> None:
        try:
            self._answer(self.sample(request))
        finally:
            self._threads.discard(threading.current_thread())
            self._free[request.duration_ms > 0].release()

    def sample(self, request: RequestThreadDump) -> ThreadDump:
        """Look for as long as the request asks; at least once, unless it asks for the log."""
        if request.log_level:
            with suppress(ValueError):  # of a newer coordinator
                self._change_level(request.log_level)
        if request.log_lines:
            return ThreadDump(
                request.request_id, self._resource_id, samples=0, log=self._recent.tail(request.log_lines)
            )
        ends = time.monotonic() + min(request.duration_ms, MAX_DURATION_MS) / 1000
        interval_s = (request.interval_ms or DEFAULT_INTERVAL_MS) / 1000
        own = threading.get_ident()
        seen: dict[tuple[str, str, ExecutionAttemptID | None, tuple[str, ...], str], int] = {}
        call_at = lru_cache(MAX_STACKS)(call_of)
        samples = 0
        heap = HeapReading() if request.heap else None
        if heap is not None:
            heap.begin()
        while True:
            samples += 1
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            tasks = self._task_threads()
            for thread_id, frame in sys._current_frames().items():  # noqa: SLF001
                if thread_id == own:
                    continue
                task_name, attempt_id = tasks.get(thread_id, ("", None))
                frames = _frames(frame)
                awaited = waits_for(frames, call_at(frame.f_code, frame.f_lasti))
                key = (names.get(thread_id, "?"), task_name, attempt_id, frames, awaited)
                if key in seen or len(seen) < MAX_STACKS:
                    seen[key] = seen.get(key, 0) + 1
            if time.monotonic() >= ends or self._stopping.wait(interval_s):
                break
        stacks = tuple(
            ThreadStack(_sayable(name), task_name, attempt_id, tuple(map(_sayable, frames)), count, awaited)
            for (name, task_name, attempt_id, frames, awaited), count in seen.items()
        )
        types, sites = heap.end() if heap is not None else ((), ())
        return ThreadDump(request.request_id, self._resource_id, stacks, samples, types, sites)
