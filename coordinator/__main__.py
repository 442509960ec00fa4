"""`python -m snapline.coordinator`: a coordinator as a process, until SIGTERM, SIGINT, or the end of the process that
started it.

Errors that a user can act on are one line on standard error and exit code 1. A coordinator whose core broke down ends
itself with exit code 2: whoever supervises it starts a new one, which recovers the jobs. One that finds out that
another has taken over in its directory ends with exit code 3, and should not be started again: it would take over in
turn.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from snapline.coordinator.coordinator_config import CoordinatorConfig, parse
from snapline.coordinator.event_logs import FAILURES
from snapline.coordinator.ha.high_availability import LeadershipLost
from snapline.dataflow.config import HA_TYPE
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.address_file import write_address
from snapline.runtime.logs import Logger, capture_standard_logging, make_logger
from snapline.runtime.open_files import raise_file_limit
from snapline.runtime.storage.storage_port import StorageError

if TYPE_CHECKING:
    from snapline.runtime.leaders.leader_election import Leadership

EXIT_REFUSED = 1
EXIT_BROKE_DOWN = 2
EXIT_REPLACED = 3
PAUSE_SECONDS = 1.0
"""Between two tries to lead."""
SIGNAL_SECONDS = 1.0
"""How long a signal may wait that has come on another thread, or just before the main one began to wait: Python's own
handlers run when that one does something, and in a wait without an end it would do nothing."""
PARENT_CHECK_SECONDS = 5.0
"""Between looks at whether the process that started this one lives; the end of its input says so before."""

GC_THRESHOLDS = (50_000, 20, 20)
"""A checkpoint of ten thousand subtasks makes a few hundred thousand short-lived objects, none of them in cycles."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a coordinator until it is told to stop; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if "--sidecar" in given:  # whoever starts this one may say its settings much later: what it needs is loaded by then
        importlib.import_module("snapline.coordinator.cluster_entrypoint")
    try:
        config = parse(given, os.environ, sys.stdin)
    except (SnaplineError, ValueError) as error:
        return _refuse(error, _status_fd_of(given))
    logger = make_logger("coordinator", config.log_level, without=FAILURES if config.failures_are_told else ())
    capture_standard_logging(logger)
    if config.warning:
        logger.warning(config.warning)
    return _run(config, logger)


def _run(config: CoordinatorConfig, logger: Logger) -> int:
    stopping = _Stop()

    def stop(number: int) -> None:
        logger.info("stopping", signal=signal.Signals(number).name)
        stopping.set()

    def hear(number: int, _frame: FrameType | None) -> None:
        # this runs on the thread that waits for the event and logs, maybe while it holds the lock of one of both
        threading.Thread(target=stop, args=(number,), name="snapline-stop").start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hear)
    raise_file_limit()
    gc.freeze()  # what was imported stays; it need not be looked at again
    gc.set_threshold(*GC_THRESHOLDS)
    if config.sidecar:
        threading.Thread(target=_watch_parent, args=(stopping, logger), name="snapline-parent", daemon=True).start()
    if config.configuration.get_option(HA_TYPE) != "zookeeper":
        return _lead(config, logger, stopping, None)
    return _stand_by(config, logger, stopping)


class _Stop(threading.Event):
    """Somebody wants this to stop; whoever waits for the end of something else hears of it as well."""

    def __init__(self) -> None:
        super().__init__()
        self._other: threading.Event | None = None

    def ring(self, other: threading.Event) -> None:
        """Set the other event, too, when this one is set, or at once when it has been."""
        self._other = other
        if self.is_set():
            other.set()

    def set(self) -> None:
        super().set()
        if self._other is not None:
            self._other.set()


def _stand_by(config: CoordinatorConfig, logger: Logger, stopping: _Stop) -> int:
    """Contend, lead, and contend again when leadership was lost, or given up for a store that is away, until
    stopped."""
    from snapline.coordinator.leader_candidate import Candidacy
    from snapline.coordinator.standby import Standby
    from snapline.coordinator.web.page_server import start_page
    from snapline.runtime.leaders.coordinator_address import coordinator_address

    def find_leader() -> str:
        return coordinator_address(config.configuration)

    def stand_by(leader: str) -> None:
        standby.start()
        _announce_standby(config, leader)

    standby = Standby(config, find_leader, logger)
    page = None
    try:
        page = None if config.sidecar else start_page(config.configuration, find_leader, logger)
        candidacy = Candidacy.from_config(config, logger, stand_by)
        leadership = candidacy.next_leadership(stopping)
        while leadership is not None:
            standby.stop()
            code = _lead(config, logger, stopping, leadership, tries_on=candidacy.is_patient)
            candidacy.is_patient = True
            leadership.session.close()
            if code or stopping.is_set():
                return code
            leadership = candidacy.next_leadership(stopping)
    except SnaplineError as error:
        return _refuse(error, config.status_fd)
    finally:
        standby.stop()
        if page is not None:
            page.stop()
    return 0


def _lead(
    config: CoordinatorConfig,
    logger: Logger,
    stopping: _Stop,
    leadership: Leadership | None,
    *,
    tries_on: bool = False,
) -> int:
    """Until stopped, broken, or not leader any more; the exit code. With `tries_on`, leadership is given up when the
    store fails, which is no error of settings: another one may lead, or this one a moment later."""
    from snapline.coordinator.cluster_entrypoint import ClusterEntrypoint
    from snapline.coordinator.web.page_server import start_page

    ended = threading.Event()
    entrypoint = page = None
    try:
        entrypoint = ClusterEntrypoint(config, logger, on_fatal=ended.set, leadership=leadership)
        address = entrypoint.start()
        _announce(config, address)
        if leadership is None and not config.sidecar:  # otherwise it is there already, whoever leads
            page = start_page(config.configuration, lambda: address, logger)
    except SnaplineError as error:
        if entrypoint is not None:
            entrypoint.stop()
        if leadership is not None and (leadership.session.is_over or isinstance(error, LeadershipLost)):
            return 0
        if leadership is not None and tries_on and isinstance(error, StorageError):
            logger.warning("cannot lead now, and gives leadership up; trying on", reason=str(error))
            leadership.session.close()
            stopping.wait(PAUSE_SECONDS)
            return 0
        return _refuse(error, config.status_fd)
    if leadership is not None:
        leadership.session.on_over(lambda _: ended.set())
    stopping.ring(ended)
    while not ended.wait(SIGNAL_SECONDS):
        pass
    if config.address_file:
        Path(config.address_file).unlink(missing_ok=True)
    fatal, lost = entrypoint.fatal_error, entrypoint.leadership_lost
    if leadership is not None and leadership.session.is_over:
        logger.warning("this coordinator does not lead any more", reason=leadership.session.reason)
    elif lost:
        logger.warning("this coordinator does not lead any more", reason=lost)
    if page is not None:
        page.stop()
    entrypoint.stop()
    if fatal:
        _tell_starter(config.status_fd, {"error": fatal})
        _say(f"coordinator: {fatal}", sys.stderr)
        return EXIT_BROKE_DOWN
    if lost and leadership is None:
        _tell_starter(config.status_fd, {"error": lost})
        _say(f"coordinator: {lost}", sys.stderr)
        return EXIT_REPLACED
    return 0


def _announce(config: CoordinatorConfig, address: str) -> None:
    """Say where it listens, to whoever wanted to know. Raises SnaplineError."""
    if config.address_file:
        write_address(Path(config.address_file), address)
    _tell_starter(config.status_fd, {"address": address})
    if not config.sidecar:
        _say(f"Coordinator listens at {address}", sys.stdout)


def _announce_standby(config: CoordinatorConfig, leader: str) -> None:
    """Say that it runs, and does not lead yet."""
    _tell_starter(config.status_fd, {"standby": leader})
    if not config.sidecar:
        _say(f"Coordinator stands by: {leader or 'another one'} leads", sys.stdout)


def _say(line: str, stream: TextIO) -> None:
    """Print the line, or lose it, as on a full disk: a coordinator leads, and has its exit code, all the same."""
    with suppress(OSError):
        print(line, file=stream, flush=True)


def _watch_parent(stopping: threading.Event, logger: Logger) -> None:
    """End with the process that started this one: its end of our standard input closes, or we get another parent."""
    parent = os.getppid()
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while os.getppid() == parent:
            if selector.select(PARENT_CHECK_SECONDS) and not os.read(0, 4096):
                break
    logger.info("stopping", reason="the process that started this coordinator has ended it, or has ended")
    stopping.set()


def _refuse(error: Exception, status_fd: int) -> int:
    _tell_starter(status_fd, {"error": str(error)})
    _say(f"coordinator: {error}", sys.stderr)
    return EXIT_REFUSED


def _tell_starter(status_fd: int, said: dict[str, str]) -> None:
    """One line to the process that started this one, if it wants to know and still lives."""
    if status_fd < 0:
        return
    try:
        os.write(status_fd, json.dumps(said).encode() + b"\n")
    except OSError:
        return


def _status_fd_of(arguments: Sequence[str]) -> int:
    """For errors in the configuration itself."""
    if "--status-fd" in arguments:
        value = arguments[list(arguments).index("--status-fd") + 1 :]
        return int(value[0]) if value and value[0].isdigit() else -1
    return -1


if __name__ == "__main__":
    sys.exit(main())
