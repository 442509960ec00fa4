"""Adapter: `snapline.taskmanager.network.channels.pipelined_subpartition.PipelinedSubpartition`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from snapline.dataflow.elements import (
    AlignmentType,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfPartition,
    StreamElement,
    Watermark,
)
from snapline.dataflow.ids import CheckpointID
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.network.channels.pipelined_subpartition import PipelinedSubpartition
from tests.conformance.replay import Scenario, difference

NEVER_MS = 2**40
END_OF_PARTITION = ("eop", "end", "endofpartition", "endofpartitionevent", "eopevent", "finish", "finished")
"""What a scenario may call the event that `finish` adds."""


class _Names:
    """What the scenario calls the elements: data by content, barriers by checkpoint id, other events by timestamp."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers) + 1)

    def make(self, name: str, kind: str, *, priority: bool) -> StreamElement:
        """The element that a step adds."""
        if kind == "data":
            return pa.record_batch({"name": [name]})
        if kind == "event" and not priority:
            return Watermark(self._number(name))
        return self.barrier(name, unaligned=priority)

    def barrier(self, name: str, *, unaligned: bool) -> CheckpointBarrier:
        """A barrier; an aligned one can time out."""
        options = CheckpointOptions(alignment=AlignmentType.UNALIGNED)
        if not unaligned:
            options = CheckpointOptions(aligned_checkpoint_timeout_ms=NEVER_MS)
        return CheckpointBarrier(CheckpointID(self._number(name)), 0, options)

    def of(self, element: StreamElement) -> str:
        """How the scenario calls it."""
        if isinstance(element, pa.RecordBatch):
            return str(element.column("name")[0].as_py())
        if isinstance(element, EndOfPartition):
            return "EOP"
        assert isinstance(element, CheckpointBarrier | Watermark)
        number = element.checkpoint_id if isinstance(element, CheckpointBarrier) else element.timestamp_ms
        return next(name for name, known in self._numbers.items() if known == number)


def replay(scenario: Scenario) -> list[str]:
    """Play the steps on one subpartition."""
    subpartition, names = PipelinedSubpartition(), _Names()
    failures: list[str] = []
    for number, step in enumerate(scenario["steps"]):
        got: dict[str, Any] = {"inflight": [], "error": None, "polled": None}
        try:
            got.update(_perform(subpartition, names, step))
        except InvariantViolation as error:
            got["error"] = str(error)
        got["blocked"] = subpartition.is_blocked
        got["queued"] = subpartition.queued_elements
        got.setdefault("backlog", subpartition.backlog)
        for key, expected in step.get("expect", {}).items():
            if expected == "*":
                continue
            actual = got.get(key)
            if key == "error":
                matches = bool(expected) == bool(actual)
            elif key == "polled" and actual == "EOP":
                matches = str(expected).replace("_", "").lower() in END_OF_PARTITION
            else:
                matches = expected == actual
            if not matches:
                failures.append(difference(number, key, expected, actual))
    return failures


def _perform(subpartition: PipelinedSubpartition, names: _Names, step: dict[str, Any]) -> dict[str, Any]:
    if "add" in step:
        priority = bool(step.get("priority", False))
        element = names.make(step["add"], step.get("type", "data"), priority=priority)
        outcome = subpartition.add(element, priority=priority)
        return {"accepted": outcome.accepted, "inflight": [names.of(batch) for batch in outcome.overtaken]}
    if "timeout" in step:
        overtaken = subpartition.time_out(names.barrier(step["timeout"], unaligned=False))
        return {"inflight": [names.of(batch) for batch in overtaken or ()], "accepted": overtaken is not None}
    if step.get("poll"):
        polled = subpartition.poll()
        return {} if polled is None else {"polled": names.of(polled.element), "backlog": polled.backlog}
    if step.get("resume"):
        subpartition.resume_consumption()
    elif step.get("finish"):
        return {"accepted": subpartition.finish()}
    elif step.get("release"):
        subpartition.release()
    return {}
