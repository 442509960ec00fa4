"""What a JobMaster that has ended still says: nobody is left waiting on a connection to it."""

from __future__ import annotations

from snapline.coordinator.jobmaster.effects import JobMasterEffect
from snapline.coordinator.jobmaster.events import JobMasterEvent
from snapline.runtime.cores.connections import CloseConnection, MessageReceived, TogetherReceived


def answer_when_closed(event: JobMasterEvent) -> list[JobMasterEffect]:
    """Return the answer of a JobMaster that has ended: it closes the connections on which something comes."""
    match event:
        case MessageReceived(connection):
            return [CloseConnection(connection)]
        case TogetherReceived(parts):
            return [CloseConnection(part.connection) for part in parts]
    return []
