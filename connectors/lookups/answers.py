"""Answers to look-ups, kept for a while: at most so many keys, each for a bounded time, also those that have no row.

Decides which answer is given again and which is forgotten first (the one that was not asked for the longest). It has no
clock and asks nobody. Flink's counterpart is DefaultLookupCache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

Found = Sequence[dict[str, Any]]
"""The rows of a key; none where the service has none."""


class KeptAnswers:
    """What is known of keys."""

    def __init__(self, most_keys: int, found_ms: int, absent_ms: int) -> None:
        """`most_keys`: 0 keeps nothing. `found_ms`, `absent_ms`: how long an answer holds that has rows, or none."""
        self._most_keys = most_keys
        self._found_ms, self._absent_ms = found_ms, absent_ms
        self._kept: OrderedDict[Hashable, tuple[int, Found]] = OrderedDict()
        """Until when an answer holds, and the answer; what was asked for last is at the end."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, now_ms: int) -> Found | None:
        """Return the rows of a key; None: not known, or not any more."""
        known = self._kept.get(key)
        if known is None:
            return None
        until_ms, found = known
        if now_ms >= until_ms:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return found

    def put(self, key: Hashable, found: Found, now_ms: int) -> None:
        """Keep an answer that was asked for now."""
        holds_ms = self._found_ms if found else self._absent_ms
        if not self._most_keys or not holds_ms:
            return
        self._kept[key] = (now_ms + holds_ms, found)
        self._kept.move_to_end(key)
        if len(self._kept) > self._most_keys:
            self._kept.popitem(last=False)
