"""What operators over windows are called in plans, graphs and metrics: kind and size, not just `window`."""

from __future__ import annotations

import re

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def describe_windows(assigner: object) -> str:
    """Kind and size of windows: `tumbling window 1 min`, `session window 30 s`, `count window 100`."""
    count = getattr(getattr(assigner, "trigger", None), "count", None)
    if count is not None and not hasattr(assigner, "size_ms"):
        return f"count window {count}"
    kind = re.match(r"[A-Z][a-z]+", type(assigner).__name__)
    session = "Session" in type(assigner).__name__
    words = ["session" if session else kind[0].lower() if kind else "", "window"]
    for before, name in (("", "size_ms"), ("every", "slide_ms"), ("", "gap_ms")):
        milliseconds = getattr(assigner, name, None)
        if isinstance(milliseconds, int):
            words += [before, duration_text(milliseconds)]
    if "ProcessingTime" in type(assigner).__name__:
        words.append("of processing time")
    return " ".join(word for word in words if word)


def duration_text(milliseconds: int) -> str:
    """A length of time in the largest unit that divides it: `90 s`, `1 d`."""
    for unit, size in _UNITS:
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"
