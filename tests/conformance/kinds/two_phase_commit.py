"""Adapter: scenarios of kind `two_phase_commit`, on TwoPhaseCommitSinkFunction over an outside system in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from snapline.dataflow.api.two_phase_commit import TwoPhaseCommitSinkFunction
from snapline.taskmanager.operators.base.function_operator import InitializationContext, SnapshotContext
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend
from tests.conformance.replay import ANY, difference


class OutsideSystem:
    """Transactions by number, what was written in each, and what anybody can see."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.begun = 0
        self.written: dict[int, list[str]] = {}
        self.done: set[int] = set()
        self.visible: list[str] = []
        self.failing: set[int] = set()
        self.calls: list[dict[str, Any]] = []
        self.warnings: list[str] = []

    def call(self, name: str, transaction: int, **more: Any) -> None:
        self.calls.append({"call": name, "tx": transaction, **more})

    def publish(self, transaction: int) -> None:
        if transaction in self.failing:
            raise OSError(f"transaction {transaction} cannot be committed")
        if transaction not in self.done:
            self.done.add(transaction)
            self.visible.extend(self.written[transaction])

    def discard(self, transaction: int) -> None:
        self.done.add(transaction)
        self.written[transaction] = []

    @property
    def leftovers(self) -> int:
        return sum(1 for transaction, values in self.written.items() if transaction not in self.done and values)


class Function(TwoPhaseCommitSinkFunction):
    """Every hook is written down."""

    def __init__(self, system: OutsideSystem, config: dict[str, Any]) -> None:
        super().__init__(
            transaction_timeout_ms=config.get("transaction_timeout_ms"),
            ignore_failures_after_transaction_timeout=config.get("ignore_failures_after_timeout", False),
            transaction_timeout_warning_ratio=config.get("warning_ratio"),
            clock_ms=lambda: system.now_ms,
        )
        self.system = system

    def begin_transaction(self) -> int:
        self.system.begun += 1
        self.system.written[self.system.begun] = []
        self.system.call("begin", self.system.begun)
        return self.system.begun

    def invoke_transaction(self, transaction: int, value: str) -> None:
        self.system.written[transaction].append(value)
        self.system.call("invoke", transaction, value=value)

    def pre_commit(self, transaction: int) -> None:
        self.system.call("pre_commit", transaction)

    def commit(self, transaction: int) -> None:
        self.system.call("commit", transaction)
        self.system.publish(transaction)

    def abort(self, transaction: int) -> None:
        self.system.call("abort", transaction)
        self.system.discard(transaction)

    def recover_and_commit(self, transaction: int) -> None:
        self.system.call("recover_and_commit", transaction)
        self.system.publish(transaction)

    def recover_and_abort(self, transaction: int) -> None:
        self.system.call("recover_and_abort", transaction)
        self.system.discard(transaction)

    def warn(self, message: str) -> None:
        self.system.warnings.append(message)


class Replay:
    """One scenario."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.scenario = scenario
        self.config = scenario.get("config") or {}
        self.system = OutsideSystem()
        self.snapshots: dict[str, tuple[bytes, ...]] = {}
        self.latest: tuple[bytes, ...] = ()
        self.function: Function | None = None
        self.store = OperatorStateBackend()
        self.failures: list[str] = []

    def run(self) -> list[str]:
        for number, step in enumerate(self.scenario["steps"]):
            self.system.calls, self.system.warnings = [], []
            self.system.failing = set(step.get("failing_commits") or ())
            error: Exception | None = None
            try:
                self.play(step)
            except Exception as raised:
                error = raised
            if error is not None and "error" not in (step.get("expect") or {}) and not self.system.failing:
                self.failures.append(difference(number, "error", False, error))
            self.compare(number, step.get("expect") or {}, error)
        return self.failures

    def live(self) -> Function:
        assert self.function is not None, "the function is gone"
        return self.function

    def start(self, restored: Iterable[bytes] | None) -> None:
        elements = tuple(restored or ())
        self.store = OperatorStateBackend({"two-phase-commit-state": elements})
        self.function = Function(self.system, self.config)
        self.function.initialize_state(InitializationContext(restored is not None, 1 if elements else 0, self.store))

    def play(self, step: dict[str, Any]) -> None:
        if "open" in step:
            self.start(None)
        elif "write" in step:
            self.live().invoke(step["write"])
        elif "snapshot" in step:
            self.live().snapshot_state(SnapshotContext(step["snapshot"], self.system.now_ms))
            self.latest = self.store.snapshot()[0].elements
            if "save_as" in step:
                self.snapshots[step["save_as"]] = self.latest
        elif "notify_complete" in step:
            self.live().notify_checkpoint_complete(step["notify_complete"])
        elif "notify_aborted" in step:
            self.live().notify_checkpoint_aborted(step["notify_aborted"])
        elif "crash" in step:
            self.function = None
        elif "restore" in step:
            self.start(self.snapshots[step["restore"]])
        elif "restore_states" in step:
            self.start([element for name in step["restore_states"] for element in self.elements_of(name)])
        elif "close" in step:
            self.live().close()
        elif "clock" in step:
            self.system.now_ms = step["clock"]
        else:
            raise AssertionError(f"unknown step {step}")

    def elements_of(self, named: Any) -> Iterable[bytes]:
        """A saved snapshot by name, or a state written out: open transaction and pending ones."""
        if isinstance(named, str):
            return self.snapshots[named]
        pending = named.get("pending") or []
        if isinstance(pending, dict):
            pending = list(pending.items())
        numbered = [
            [entry[0], entry[1], 0] if isinstance(entry, (list, tuple)) else [index, entry, 0]
            for index, entry in enumerate(pending)
        ]
        opened = named.get("open")
        for transaction in [entry[1] for entry in numbered] + ([opened] if opened is not None else []):
            self.system.written.setdefault(transaction, [])
            self.system.begun = max(self.system.begun, transaction)
        backend = OperatorStateBackend()
        state = backend.get_list_state("two-phase-commit-state")
        state.update([{"open": None if opened is None else [opened, 0], "pending": numbered, "context": None}])
        return backend.snapshot()[0].elements

    def compare(self, number: int, expect: dict[str, Any], error: Exception | None) -> None:
        got: dict[str, Any] = {
            "calls": self.system.calls,
            "committed": sorted(self.system.visible),
            "pending": [checkpoint_id for checkpoint_id, _ in self.function.pending_transactions]
            if self.function
            else [],
            "state": self.state(),
            "error": error is not None,
            "leftovers": self.system.leftovers,
        }
        for key, wanted in expect.items():
            if wanted == ANY:
                continue
            if key == "warnings":
                ok = _warned(wanted, self.system.warnings)
                actual: Any = self.system.warnings
            else:
                actual = got[key]
                ok = _equal(key, wanted, actual, self.system.begun)
            if not ok:
                self.failures.append(difference(number, key, wanted, actual))

    def state(self) -> dict[str, Any]:
        elements = [json.loads(element) for element in self.latest]
        opened = [element["open"][0] for element in elements if element["open"] is not None]
        return {
            "open": opened[0] if opened else None,
            "pending": [entry[0] for element in elements for entry in element["pending"]],
        }


def _equal(key: str, wanted: Any, actual: Any, newest: int) -> bool:
    if key == "calls":
        named = [{name: newest if said == "new" else said for name, said in call.items()} for call in wanted]
        return len(named) == len(actual) and all(
            call.items() <= made.items() for call, made in zip(named, actual, strict=True)
        )
    if key == "committed":
        return sorted(map(str, wanted)) == actual
    if key == "error":
        return bool(wanted) == actual
    if key == "state":
        return all(actual.get(name) == value for name, value in wanted.items())
    return bool(wanted == actual)


def _warned(wanted: Any, warnings: list[str]) -> bool:
    """Whether there is a warning, how many, or what each says, in order. What is said is not fixed by its words, but by
    its numbers: all of them (the transaction, how long it has been open, its timeout) must be in the warning."""
    if isinstance(wanted, bool):
        return bool(warnings) is wanted
    if isinstance(wanted, int):
        return len(warnings) == wanted
    texts = [wanted] if isinstance(wanted, (str, dict)) else list(wanted)
    return len(warnings) == len(texts) and all(map(_says, warnings, texts))


def _says(warning: str, wanted: Any) -> bool:
    values = wanted.values() if isinstance(wanted, dict) else [wanted]
    numbers = [number for value in values for number in re.findall(r"\d+", str(value))]
    said = re.findall(r"\d+", warning)
    return all(number in said for number in numbers)


def replay(scenario: dict[str, Any]) -> list[str]:
    """Failure lines; empty when the function behaves as the scenario says."""
    return Replay(scenario).run()
