"""Which jobs were being started when a leader ended: a job that ends every leader which starts it is left alone.

Decides that a job is marked while its JobMaster is built, that the mark goes when that is done, and that one which was
found marked by two leaders in a row is parked: it stays where it is, is named to whoever looks, and every other job
starts. Jobs are started beside each other, so that one leaves marks of others: those that a leader finds marked it
starts one after the other, and so the second mark is of one job alone. A leader that was ended by somebody else in
that moment leaves a mark as well; the next start takes it away.
A mark that can be neither read nor written, because something else stands in its place, keeps no job from starting.
Only jobs of former leaders are marked, so that nobody waits when a job is submitted. Flink has no counterpart.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from snapline.dataflow.ids import JobID
from snapline.runtime.storage.bounded_reads import get_at_most
from snapline.runtime.storage.storage_port import Storage, StorageError

DIRECTORY = "starting"
LEADERS_IN_A_ROW = 2
"""So many leaders may end while they start a job, and the next one does not start it."""
MAX_MARK_BYTES = 10
"""More digits are no number of leaders."""


class StartMarks:
    """The marks of one cluster. Every method may take long, but for `start_in_turn` and `end_turn`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._suspects: set[JobID] = set()
        """Jobs that were found marked and have not been started since."""
        self._turn: JobID | None = None
        """The suspect that is being started."""
        self._waiting: deque[tuple[JobID, Callable[[], None]]] = deque()
        """The suspects that wait for that, and how they are started."""

    def begin(self, job_id: JobID) -> None:
        """Mark that this leader begins to start the job. Raises StorageError, after which it can be started all the
        same."""
        self._storage.put(self._path(job_id), b"%d" % (self.count(job_id) + 1))

    def end(self, job_id: JobID) -> None:
        """The job was started, or is gone. Takes away what else stands in the place of its mark. Idempotent. Raises
        StorageError."""
        try:
            self._storage.delete(self._path(job_id))
        except StorageError:
            self._storage.delete_prefix(self._path(job_id))

    def count(self, job_id: JobID) -> int:
        """How many leaders in a row have ended while they started it."""
        try:
            text = get_at_most(self._storage, self._path(job_id), MAX_MARK_BYTES)
        except StorageError:  # there is none, or something else in its place
            return 0
        return int(text) if text.isdigit() else 0

    def why_parked(self, job_id: JobID, name: str) -> str:
        """Why the job is not started, and the way out; empty: it is started."""
        count = self.count(job_id)
        if count:
            self._suspects.add(job_id)
        if count < LEADERS_IN_A_ROW:
            return ""
        return (
            f"job {name!r} ({job_id}) is parked: {LEADERS_IN_A_ROW} leaders in a row have ended while they started it. Look at their logs; then "
            f"cancel it (snapline cancel {job_id}), or remove {self._storage.url}/{self._path(job_id)} and restart the coordinator to try again"
        )

    def start_in_turn(self, job_id: JobID, start: Callable[[], None]) -> None:
        """Call `start`; for a suspect, as soon as no other one is being started."""
        with self._lock:
            if job_id in self._suspects:
                if self._turn not in (None, job_id):
                    self._waiting.append((job_id, start))
                    return
                self._turn = job_id
        start()

    def end_turn(self, job_id: JobID, *, started: bool) -> None:
        """The job was started, or cannot be for now; another suspect may be. Idempotent."""
        with self._lock:
            if started:
                self._suspects.discard(job_id)
            if self._turn != job_id:
                return
            self._turn, start = self._waiting.popleft() if self._waiting else (None, None)
        if start is not None:
            start()

    @staticmethod
    def _path(job_id: JobID) -> str:
        return f"{DIRECTORY}/{job_id}"
