"""Threads that encode and write snapshots: a few for each job, so that a storage that never answers holds up the
snapshots of its own job and of no other.

A thread begins when there is work for it and ends when it has had none for a while, so that jobs that have ended leave
none behind. Order between pieces of work is not kept.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from snapline.dataflow.ids import JobID

THREADS = 4
"""A job has so many at most."""
IDLE_SECONDS = 10.0
CLOSE_SECONDS = 30.0


class Workers(Protocol):
    """What performs work soon, anywhere."""

    def submit(self, job_id: JobID, work: Callable[[], None]) -> None:
        """Have it done, with other work of this job. Raises RuntimeError once `close` was called."""
        ...

    def close(self) -> None:
        """Do what was submitted, and take no more."""
        ...


@dataclass(slots=True)
class _Lane:
    """The work of one job."""

    has_work: threading.Condition
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    idle: int = 0
    threads: set[threading.Thread] = field(default_factory=set)


class UploadThreads:
    """The threads of one TaskManager."""

    def __init__(self, threads: int = THREADS, idle_s: float = IDLE_SECONDS) -> None:
        """`threads`: so many for each job at most, which end after `idle_s` seconds without work."""
        self._most = threads
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._lanes: dict[JobID, _Lane] = {}
        self._closed = False

    def submit(self, job_id: JobID, work: Callable[[], None]) -> None:
        """Have it done by a thread of this job. Raises RuntimeError once `close` was called."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the TaskManager is going down")
            lane = self._lanes.get(job_id)
            if lane is None:
                lane = self._lanes[job_id] = _Lane(threading.Condition(self._lock))
            lane.waiting.append(work)
            if len(lane.waiting) > lane.idle and len(lane.threads) < self._most:
                name = f"snapshot-upload-{job_id[:8]}"
                thread = threading.Thread(target=self._run, args=(job_id, lane), name=name, daemon=True)
                lane.threads.add(thread)
                thread.start()
            lane.has_work.notify()

    def close(self) -> None:
        """Do what was submitted, as far as the storage answers in time, and take no more."""
        with self._lock:
            self._closed = True
            threads = [thread for lane in self._lanes.values() for thread in lane.threads]
            for lane in self._lanes.values():
                lane.has_work.notify_all()
        end = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self, job_id: JobID, lane: _Lane) -> None:
        while (work := self._next(job_id, lane)) is not None:
            work()

    def _next(self, job_id: JobID, lane: _Lane) -> Callable[[], None] | None:
        """What is to be done next; None: this thread ends."""
        with self._lock:
            if not lane.waiting and not self._closed:
                lane.idle += 1
                lane.has_work.wait_for(lambda: lane.waiting or self._closed, self._idle_s)
                lane.idle -= 1
            if lane.waiting:
                return lane.waiting.popleft()
            lane.threads.discard(threading.current_thread())
            if not lane.threads:
                self._lanes.pop(job_id, None)
            return None
