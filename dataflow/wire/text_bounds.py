"""How long a text in a message may be: what a process says of itself, and why something has failed, is kept for a
while, logged and shown, and a message may have 256 MiB.

Decides that a reason or a failure is cut short, because it is for people, and that anything else which is too long is
refused where it is decoded, as numbers out of bounds are.
"""

from __future__ import annotations

from collections.abc import Callable

from snapline.dataflow.wire.wire_errors import WireError

MAX_ID = 1 << 10
"""Characters that an id may have."""
MAX_SAID = 1 << 13
"""Characters of what a TaskManager says of itself, of a reason, and of the path of a file of state."""
MAX_FAILURE_LINE = 1 << 14
"""Characters of a line about a failure; TaskManagers keep to fewer."""
MAX_TRACEBACK = 1 << 17
MAX_TEXT = 1 << 20
"""Characters of any other text."""

_MOST = {"SerializedFailure.traceback": MAX_TRACEBACK, "ReportWatermark.group": MAX_SAID}
_MOST_OF_MESSAGE = {"SerializedFailure": MAX_FAILURE_LINE, "TaskManagerInfo": MAX_SAID}
_REASONS = ("reason", "detail")


def text_bound(label: str, *, is_id: bool) -> Callable[[str], str]:
    """What a text of a field (`Message.field`) is taken through: it comes back, perhaps cut short, or is refused with a
    WireError."""
    message, _, field = label.partition(".")
    is_cut = message == "SerializedFailure" or field in _REASONS
    most = MAX_ID if is_id else MAX_SAID if field in _REASONS else _MOST_OF_MESSAGE.get(message, MAX_TEXT)
    most = _MOST.get(label, most)

    def take(text: str) -> str:
        if len(text) <= most:
            return text
        if is_cut:
            return text[:most]
        raise too_long(label, text, most)

    return take


def too_long(label: str, text: str, most: int) -> WireError:
    """The error for a text that no message may carry."""
    return WireError(f"{label} has {len(text)} characters; {most} are the most that it may have")
