"""The audit line: who has asked a coordinator to change something, what exactly, and what the answer was.

One INFO line a request in the coordinator's log. Who it was is what the client says of itself (`snapline-client`) and
the address that it has; with TLS or a token nobody else could have asked. Of what is refused one line a second for each
host and kind of request, which says how many it stands for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from snapline.runtime.cores.senders import RefusedSenders, host_of
from snapline.runtime.logs import Logger

CLIENT_HEADER = "snapline-client"
"""Metadata of a call: user and host of the client."""
MAX_WHO = 200


class AuditLog:
    """Writes the lines of the audit."""

    def __init__(self, logger: Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger.bind(logger="audit")
        self._now_s = now_s
        self._refused = RefusedSenders()

    def write(self, request: str, who: str, outcome: str, **details: Any) -> None:
        """Log one request and its outcome, which begins with `refused` when nothing was done; details that say nothing
        are left out."""
        if outcome.startswith("refused"):
            untold = self._refused.note(f"{request} of {host_of(who.rpartition(' at ')[2])}", self._now_s())
            if untold is None:
                return
            details["not_logged_before"] = untold
        said = {name: value for name, value in details.items() if value not in ("", None, False)}
        self._logger.info("request", request=request, who=who, outcome=outcome, **said)


def client_of(context: Any) -> str:
    """What the client calls itself, and where it is."""
    metadata = dict(context.invocation_metadata() or ())
    name = str(metadata.get(CLIENT_HEADER, ""))[:MAX_WHO]
    return f"{name} at {context.peer()}" if name else str(context.peer())
