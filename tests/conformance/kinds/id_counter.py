"""Adapter: scenarios of kind `id_counter` against a counter in memory and snapline.coordinator.ha.embedded."""

from __future__ import annotations

import threading
from typing import Any

from snapline.coordinator.checkpoint.id_counter import CheckpointIDCounter
from snapline.coordinator.ha.embedded import EmbeddedCheckpointIDCounter, LeadershipFence
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.storage.memory_storage import MemoryStorage
from tests.conformance.kinds.standalone_id_counter import StandaloneCheckpointIDCounter
from tests.conformance.replay import ANY, difference


class Harness:
    def __init__(self, config: dict[str, Any]) -> None:
        self.durable = config.get("impl", "standalone") == "ha"
        self.storage = MemoryStorage()
        self.counter = self.open()

    def open(self) -> CheckpointIDCounter:
        if self.durable:
            return EmbeddedCheckpointIDCounter(self.storage, JobID("job"), LeadershipFence(self.storage, None))
        return StandaloneCheckpointIDCounter()

    def play(self, step: dict[str, Any]) -> dict[str, Any]:
        counter = self.counter
        match step:
            case {"start": _}:
                counter.start()
            case {"get_and_increment": _}:
                return {"value": counter.get_and_increment()}
            case {"get": _}:
                return {"value": counter.get()}
            case {"set_count": number}:
                counter.set_count(CheckpointID(number))
            case {"concurrent_increments": how}:
                return self.concurrently(how["threads"], how["each"])
            case {"shutdown": status}:
                counter.shutdown(JobStatus(status))
                return {"persisted": isinstance(counter, EmbeddedCheckpointIDCounter) and counter.is_persisted}
            case {"reopen": _}:
                self.counter = self.open()
                self.counter.start()
            case _:
                raise NotImplementedError(f"step {sorted(step)}")
        return {}

    def concurrently(self, threads: int, each: int) -> dict[str, Any]:
        drawn: list[int] = []

        def draw() -> None:
            drawn.extend(self.counter.get_and_increment() for _ in range(each))

        workers = [threading.Thread(target=draw) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        complete = sorted(drawn) == list(range(min(drawn), min(drawn) + len(drawn)))
        return {
            "sorted_values_from": min(drawn),
            "sorted_values_to": max(drawn) if complete else sorted(drawn),
            "duplicates": len(drawn) - len(set(drawn)),
        }


def replay(scenario: dict[str, Any]) -> list[str]:
    """Omitted keys are unchecked."""
    harness = Harness(scenario.get("config", {}))
    failures = []
    for number, step in enumerate(scenario["steps"]):
        got = harness.play(step)
        for key, expected in step.get("expect", {}).items():
            if expected not in (ANY, got.get(key)):
                failures.append(difference(number, key, expected, got.get(key)))
    return failures
