"""Adapter: scenarios of kind `source_offsets`, on CheckpointedOffsets; the lock steps on a push source with a
thread."""

from __future__ import annotations

import threading
from typing import Any

from snapline.connectors.kafka.offsets import CheckpointedOffsets
from snapline.taskmanager.threads.push_source_threads import ThreadedPushSource
from tests.conformance.replay import ANY, difference


class LockedSource:
    """Emits and moves its position under the checkpoint lock, slowly enough for a checkpoint to ask in between."""

    def __init__(self, offsets: CheckpointedOffsets) -> None:
        self.offsets = offsets
        self.emitted: list[Any] = []

    def run(self, emit: list[Any], then_offset: dict[str, int], checkpoint_id: int) -> dict[str, Any]:
        """What a checkpoint that is requested between emission and offset sees."""
        runner = ThreadedPushSource("locked-source", lambda: None)
        between, requested = threading.Event(), threading.Event()

        def body() -> None:
            with runner.checkpoint_lock:
                self.emitted.extend(emit)
                between.set()
                requested.wait(10)
                self.offsets.update(then_offset)

        runner.start(body)
        between.wait(10)
        requested.set()
        with runner.checkpoint_lock:
            seen = {"emitted": list(self.emitted), "state": self.offsets.snapshot(checkpoint_id)}
        runner.join()
        return seen


def _offsets(value: Any) -> dict[str, int]:
    return dict(value) if isinstance(value, dict) else {"p": int(value)}


def replay(scenario: dict[str, Any]) -> list[str]:
    """Failure lines; empty when positions are kept and published as the scenario says."""
    mode = (scenario.get("config") or {}).get("commit_mode", "on_checkpoints")
    offsets = CheckpointedOffsets(commit_on_checkpoints=mode == "on_checkpoints")
    emitted: list[Any] = []
    failures: list[str] = []
    for number, step in enumerate(scenario["steps"]):
        got: dict[str, Any] = {}
        if "offsets" in step:
            offsets.update(step["offsets"])
        elif "snapshot" in step:
            got["state"] = offsets.snapshot(step["snapshot"])
            got["ignored"] = got["state"] is None
        elif "notify_complete" in step:
            got["committed"] = offsets.notify_checkpoint_complete(step["notify_complete"])
            got["ignored"] = not offsets.is_running
        elif "snapshot_many" in step:
            for checkpoint_id in _ids(step["snapshot_many"]):
                got["state"] = offsets.snapshot(checkpoint_id)
        elif "restored" in step:
            offsets = CheckpointedOffsets(step["restored"], commit_on_checkpoints=mode == "on_checkpoints")
        elif "stop" in step:
            offsets.stop()
        elif "checkpoint_requested_between_emit_and_offset" in step:
            request = {**step, **step["checkpoint_requested_between_emit_and_offset"]}
            source = LockedSource(offsets)
            source.emitted = emitted
            checkpoint_id = next(
                (request[name] for name in ("cp", "id", "checkpoint", "snapshot") if name in request), 1
            )
            moved: Any = next((request[name] for name in ("then_offset", "offset", "offsets") if name in request), {})
            seen = source.run(list(request.get("emit", [])), _offsets(moved), checkpoint_id)
            got.update(seen, one_of=seen)
        elif "emit" in step:
            emitted.extend(step["emit"])
            if "then_offset" in step:
                offsets.update(_offsets(step["then_offset"]))
        else:
            raise NotImplementedError(f"step {sorted(step)}")
        pending = list(offsets.pending_checkpoints)
        got.update(pending=pending, pending_count=len(pending), pending_first=pending[0] if pending else None)
        for key, wanted in (step.get("expect") or {}).items():
            if wanted == ANY:
                continue
            if key == "one_of":
                ok = any(_is_seen(option, got["one_of"]) for option in wanted)
            else:
                ok = got.get(key) == wanted
            if not ok:
                failures.append(difference(number, key, wanted, got.get(key)))
    return failures


STATE = ("state", "offset", "offsets", "position", "positions")
EMITTED = ("emitted", "records", "emit")


def _is_seen(option: dict[str, Any], seen: dict[str, Any]) -> bool:
    """Whether the checkpoint saw this: which positions, and which records were out by then (or how many)."""
    compared = []
    for name, wanted in option.items():
        if name in STATE:
            compared.append(seen["state"] == _offsets(wanted))
        elif name in EMITTED:
            emitted = seen["emitted"]
            compared.append((len(emitted) if isinstance(wanted, int) else emitted) == wanted)
    return bool(compared) and all(compared)


def _ids(spec: dict[str, Any]) -> range:
    """`{first, last}`, or `{from, to}`, or `{first, count}`, both ends included."""
    first = next((spec[name] for name in ("first", "from") if name in spec), 1)
    last = next((spec[name] for name in ("last", "to") if name in spec), None)
    if last is None:
        last = first + next((spec[name] for name in ("count", "n") if name in spec), 1) - 1
    return range(first, last + 1)
