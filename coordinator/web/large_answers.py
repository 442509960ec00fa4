"""Answers of the page that take long to make: on a thread, one at a time, so that others are answered meanwhile.

Decides by the size of what the coordinator has said. Who may ask, and what an answer says, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import Message

LARGE_ANSWER_BYTES = 1 << 16
"""An answer of more becomes JSON on a thread, one such answer at a time: on the loop it would keep all others."""

Made = TypeVar("Made")


class LargeAnswers:
    """The thread on which one server makes its large answers, one after the other."""

    def __init__(self) -> None:
        self._one = asyncio.Semaphore(1)

    async def make(self, source: Message, make: Callable[[], Made]) -> Made:
        """What `make` returns, which has as much to do as the message that it looks at is large."""
        if source.ByteSize() <= LARGE_ANSWER_BYTES:
            return make()
        async with self._one:
            return await asyncio.to_thread(make)
