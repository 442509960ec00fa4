"""Adapter: scenarios of kind `completed_store` against snapline.coordinator.checkpoint.completed_store.

With `impl: ha` the pointers are those of snapline.coordinator.ha.embedded, on one storage for all stores of the
scenario; what the shell does with a checkpoint that is given up (pointer first, files when nobody holds it) is done
here as `snapline.coordinator.actors.checkpoint_io` does.
"""

from __future__ import annotations

from typing import Any

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.completed_store import CompletedCheckpointStore
from snapline.coordinator.checkpoint.metadata import (
    MetadataError,
    build_metadata,
    encode_pointer,
    parse_metadata,
    resolve_pointer,
)
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.coordinator.ha.embedded import EmbeddedPointers, LeadershipFence
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.cores.machine import InvariantViolation, check
from snapline.runtime.storage.memory_storage import MemoryStorage
from tests.conformance.replay import ANY, difference

JOB = JobID("job")
PROPERTIES = {
    "checkpoint": CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION),
    "savepoint": CheckpointProperties.for_savepoint(),
    "sync_savepoint": CheckpointProperties.for_savepoint(SnapshotType.SAVEPOINT_SUSPEND),
}


class PersistFailed(Exception):
    """The scenario wants the pointer's creation to fail."""


def checkpoint_of(number: int, kind: str = "checkpoint") -> CompletedCheckpoint:
    return CompletedCheckpoint(JOB, "", CheckpointID(number), 0, 0, PROPERTIES[kind], f"chk-{number}", ())


class Harness:
    """All stores of a scenario, the storage that they share, and the files of the checkpoints."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.durable = config.get("impl", "standalone") == "ha"
        self.storage = MemoryStorage()
        self.files: dict[int, bytes] = {}
        self.discard_fails: set[int] = set()
        self.stores: dict[str, CompletedCheckpointStore] = {}
        self.pointers: dict[str, EmbeddedPointers] = {}
        for name in config.get("stores", ["store"]):
            self.open(name)
        for number in config.get("persisted_unordered", ()):
            checkpoint = checkpoint_of(number)
            self.write(checkpoint)
            EmbeddedPointers(self.storage, JOB, LeadershipFence(self.storage, None)).add(
                checkpoint.checkpoint_id, encode_pointer(checkpoint)
            )
        for number in config.get("unreadable", ()):
            self.files[number] = self.files[number][:-1]

    def open(self, name: str) -> None:
        self.stores[name] = CompletedCheckpointStore(
            self.config.get("max_retained", 1), survives_suspension=self.durable
        )
        owner = "leader" if name == "store" else name
        self.pointers[name] = EmbeddedPointers(self.storage, JOB, LeadershipFence(self.storage, None), owner)

    def write(self, checkpoint: CompletedCheckpoint) -> None:
        self.files[checkpoint.checkpoint_id] = build_metadata(checkpoint.metadata, checkpoint.location)

    def give_up(self, name: str, checkpoint: CompletedCheckpoint, *, discard: bool) -> list[int]:
        if self.durable and not self.pointers[name].remove(checkpoint.checkpoint_id):
            return []
        if not discard or checkpoint.checkpoint_id in self.discard_fails:
            return []
        self.files.pop(checkpoint.checkpoint_id, None)
        return [checkpoint.checkpoint_id]

    def play(self, step: dict[str, Any]) -> dict[str, Any]:
        name = step.get("store", next(iter(self.stores)))
        store = self.stores[name]
        got: dict[str, Any] = {"error": False, "discarded": []}
        try:
            match step:
                case {"add": entry}:
                    got["discarded"] = self.add(name, store, entry)
                case {"latest": True}:
                    got["latest"] = _id(store.latest())
                case {"latest": {"prefer_checkpoint": prefer}}:
                    got["latest"] = _id(store.latest(prefer_checkpoint=prefer))
                case {"all": _}:
                    pass
                case {"shutdown": status}:
                    outcome = store.shutdown(JobStatus(status))
                    for checkpoint in outcome.discarded:
                        got["discarded"] += self.give_up(name, checkpoint, discard=True)
                    for checkpoint in outcome.kept:
                        self.give_up(name, checkpoint, discard=False)
                    self.pointers[name].release()
                case {"recover": _}:
                    self.recover(name)
                case {"construct": _}:
                    self.open(name)
                case _:
                    raise NotImplementedError(f"step {sorted(step)}")
        except (InvariantViolation, MetadataError, PersistFailed, ValueError):
            got["error"] = True
        got["retained"] = [checkpoint.checkpoint_id for checkpoint in self.stores[name].checkpoints]
        got["persisted"] = list(self.pointers[name].checkpoint_ids)
        return got

    def add(self, name: str, store: CompletedCheckpointStore, entry: dict[str, Any]) -> list[int]:
        checkpoint = checkpoint_of(entry["id"], entry.get("type", "checkpoint"))
        if entry.get("discard_fails"):
            self.discard_fails.add(entry["id"])
        check(store.is_open, "nothing is persisted for a store that is shut down")
        if entry.get("persist_fails"):
            raise PersistFailed
        self.write(checkpoint)
        if self.durable:
            self.pointers[name].add(checkpoint.checkpoint_id, encode_pointer(checkpoint))
        discarded: list[int] = []
        for dropped in store.add(checkpoint):
            discarded += self.give_up(name, dropped, discard=dropped.properties.discard_on_subsumed)
        return discarded

    def recover(self, name: str) -> None:
        """A new store, as a new leader has it, over what is persisted; a store that is not durable stays what it
        was."""
        if not self.durable:
            self.stores[name].recover(())
            return
        found = list(self.pointers[name].load())
        recovered = [
            resolve_pointer(pointer, parse_metadata(self.files[number], f"chk-{number}"), JOB)
            for pointer, number in zip(found, self.pointers[name].checkpoint_ids, strict=True)
        ]
        self.open(name)
        self.stores[name].recover(recovered)


def _id(checkpoint: CompletedCheckpoint | None) -> CheckpointID | None:
    return None if checkpoint is None else checkpoint.checkpoint_id


def replay(scenario: dict[str, Any]) -> list[str]:
    """Omitted keys are unchecked; a store that cannot be built is the first step's error."""
    try:
        harness = Harness(scenario.get("config", {}))
    except ValueError:
        first = scenario["steps"][0]
        refused = "construct" in first and first.get("expect", {}).get("error")
        return [] if refused else [difference(0, "error", False, True)]
    failures = []
    for number, step in enumerate(scenario["steps"]):
        got = harness.play(step)
        for key, expected in step.get("expect", {}).items():
            value: Any = got.get(key)
            if expected == ANY:
                continue
            if key in ("discarded", "persisted"):
                expected, value = sorted(expected), sorted(value)
            if value != expected:
                failures.append(difference(number, key, expected, value))
    return failures
