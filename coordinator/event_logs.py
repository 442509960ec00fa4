"""What a coordinator's log says of its jobs and TaskManagers: one line for each failure and each registration.

Read off the cores after each batch of events, on their actors' threads; decides nothing but the level. A failure that
ends or restarts a job is a warning that names job, task, attempt and TaskManager; so is a TaskManager that was rejected
or lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snapline.coordinator.execution.given_slots import ForgedSlot
from snapline.coordinator.jobmaster.job_master import JobMaster
from snapline.coordinator.resource.resource_manager import RegistrationNews, RegistrationOutcome, ResourceManager
from snapline.runtime.logs import TASK_FAILED, Logger
from snapline.runtime.rpc.sender_limits import RefusalLog

JOB_FAILED = "job failed"
JOB_STATUS = "job status"
REJECTED = "rejected"
"""Whoever is rejected chooses what it is called, so that all of them are one."""
FORGED_SLOT = (
    "it names a slot that no coordinator has given to the job on it: either somebody forges slots, or the secret of that "
    "time is no longer in security.auth.token"
)
FAILURES = frozenset({TASK_FAILED, JOB_FAILED, JOB_STATUS})
"""Messages that a driver whose console this log shares tells itself."""


class _ForgedSlots:
    """Writes who names slots that nobody gave it, as one who keeps slots remembers the last of them."""

    def __init__(self, logger: Logger) -> None:
        self._refusals = RefusalLog(logger)
        self._last = 0

    def write(self, last: ForgedSlot | None) -> None:
        """Log it if it is another one than at the last call."""
        if last is not None and last.number != self._last:
            self._last = last.number
            self._refusals.write(last.resource_id, FORGED_SLOT)


class JobLog:
    """Writes what is new of one job."""

    def __init__(self, master: JobMaster, logger: Logger) -> None:
        """Begin with a job that has not failed under this leader."""
        self._master = master
        self._logger = logger
        self._last_failure = 0
        self._forged = _ForgedSlots(logger)

    def write(self) -> None:
        """Log what has happened since the last call."""
        scheduler = self._master.scheduler
        for entry in scheduler.exceptions:
            if entry.number <= self._last_failure:
                continue
            self._last_failure = entry.number
            failure = entry.failure
            found = {
                "task": entry.task_name,
                "attempt": entry.attempt,
                "resource_id": entry.resource_id,
                "operator": failure.operator_uid,
                "position": failure.position,
                "traceback": failure.traceback,
            }
            details = {name: value for name, value in found.items() if value}
            self._logger.warning(TASK_FAILED if entry.task_name else JOB_FAILED, reason=failure.summary, **details)
        self._forged.write(scheduler.pool.last_forged)


class RegistrationLog:
    """Writes which TaskManagers have come, were rejected, and are gone."""

    def __init__(self, manager: ResourceManager, logger: Logger) -> None:
        """Begin with nothing that was written before."""
        self._manager = manager
        self._logger = logger
        self._streams = RefusalLog(logger)
        self._last = 0
        self._forged = _ForgedSlots(logger)

    def write(self) -> None:
        """Log what has happened since the last call."""
        self._forged.write(self._manager.slot_manager.last_forged)
        news = self._manager.news
        if not news or news[-1].number == self._last:
            return
        for each in [each for each in news if each.number > self._last]:
            info = each.info
            details = {"resource_id": info.resource_id, "host": info.host, "version": info.version}
            if each.outcome is RegistrationOutcome.REGISTERED:
                self._say(info.resource_id, self._logger.info, each, slots=info.slots, pid=info.pid, **details)
            elif (
                each.outcome is RegistrationOutcome.LOST
            ):  # it may go because its work is done; tasks that fail are warned of
                self._say(info.resource_id, self._logger.info, each, reason=each.reason, **details)
            else:
                self._say(REJECTED, self._logger.warning, each, reason=each.reason, **details)
        self._last = news[-1].number

    def _say(self, about: str, log: Callable[..., Any], news: RegistrationNews, **details: Any) -> None:
        """A hundred lines at once, and then one a second: a process may register and go as often as it likes."""
        self._streams.note_stream(about, log, news.outcome.value, **details)
