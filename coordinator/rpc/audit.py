"""The audit line: who has asked a coordinator to change something, what exactly, and what the answer was.

One INFO line a request in the coordinator's log. Who it was is what the client says of itself (`snapline-client`) and
the address that it has; with TLS or a token nobody else could have asked.
"""

from __future__ import annotations

from typing import Any

from snapline.runtime.logs import Logger

CLIENT_HEADER = "snapline-client"
"""Metadata of a call: user and host of the client."""
MAX_WHO = 200


class AuditLog:
    """Writes the lines of the audit."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger.bind(logger="audit")

    def write(self, request: str, who: str, outcome: str, **details: Any) -> None:
        """Log one request and its outcome; details that say nothing are left out."""
        said = {name: value for name, value in details.items() if value not in ("", None, False)}
        self._logger.info("request", request=request, who=who, outcome=outcome, **said)


def client_of(context: Any) -> str:
    """What the client calls itself, and where it is."""
    metadata = dict(context.invocation_metadata() or ())
    name = str(metadata.get(CLIENT_HEADER, ""))[:MAX_WHO]
    return f"{name} at {context.peer()}" if name else str(context.peer())
