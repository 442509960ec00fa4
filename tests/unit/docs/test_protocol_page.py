"""The page about the TaskManager's protocol against the messages and states that there are."""

from __future__ import annotations

import re
from pathlib import Path

from snapline.coordinator.resource.slot_manager import SlotState
from snapline.dataflow.wire.codec import CONTROL_MESSAGES
from snapline.dataflow.wire.messages import ExecutionState
from snapline.taskmanager.executor.slot_table import TaskSlotState

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_every_message_of_a_stream_is_on_the_page() -> None:
    """Nobody adds one and leaves it out; none is named that is gone."""
    page = PAGE.read_text()
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", page))
    messages = {message.__name__ for message in CONTROL_MESSAGES.values()}
    assert messages - named == set()
    assert named - messages == set()


def test_every_state_is_on_the_page() -> None:
    """Those of attempts, and of slots as both sides see them."""
    words = set(re.findall(r"\b[A-Z]{4,}\b", PAGE.read_text()))
    states = {each.value.upper() for states in (ExecutionState, SlotState, TaskSlotState) for each in states}
    assert states - words == set()
