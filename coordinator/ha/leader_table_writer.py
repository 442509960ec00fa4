"""Writes the table of leaders to ZooKeeper, the newest one, in the background.

Tables that come faster than they can be written are skipped; a write that fails is tried again, until this coordinator
does not lead any more. A table that somebody has removed or overwritten is written once more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from snapline.coordinator.ha.high_availability import LeadershipLost
from snapline.runtime.leaders.leader_retrieval import LeaderTable, seal_leader_table
from snapline.runtime.logs import Logger
from snapline.runtime.signing import LeaderSigner

RETRY_SECONDS = 0.5
LOOK_SECONDS = 5.0
"""How often somebody looks whether there is another secret to sign with, and whether the table is still there."""


class LeaderTableWriter:
    """Publishes the table of leaders on one thread of its own."""

    def __init__(
        self,
        read: Callable[[], bytes | None],
        write: Callable[[bytes], None],
        signer: Callable[[], LeaderSigner],
        logger: Logger,
    ) -> None:
        """`read` returns the table that is there now. `signer` returns what signs at that moment; when it has changed
        the table is signed anew."""
        self._read = read
        self._write = write
        self._signer = signer
        self._logger = logger
        self._changed = threading.Condition()
        self._newest: LeaderTable | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="snapline-leader-table", daemon=True)
        self._thread.start()

    def publish(self, table: LeaderTable) -> None:
        """Publish this table soon; may be called from any thread."""
        with self._changed:
            self._newest = table
            self._changed.notify()

    def stop(self) -> None:
        """What was not written stays unwritten. Idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        written: LeaderTable | None = None
        published = b""
        signed_by: LeaderSigner | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._newest is not None, LOOK_SECONDS)
                if self._stopping:
                    return
                table, self._newest = self._newest, None
            signer = self._signer()
            try:
                if table is None and written is not None and (signer != signed_by or self._read() != published):
                    table = written
                if table is not None:
                    published = seal_leader_table(table, signer)
                    self._write(published)
                    written, signed_by = table, signer
            except LeadershipLost:
                return
            except Exception as error:
                self._logger.warning("the leaders cannot be published; trying on", reason=str(error))
                with self._changed:
                    self._newest = self._newest or table
                    self._changed.wait_for(lambda: self._stopping, RETRY_SECONDS)
