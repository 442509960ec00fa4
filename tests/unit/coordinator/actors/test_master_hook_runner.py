"""Calling hooks: one after the other, with their state translated, and without a hung one holding up anything else."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from snapline.coordinator.actors.master_hook_runner import MasterHookRunner
from snapline.coordinator.checkpoint.effects import (
    CloseMasterHook,
    ResetMasterHook,
    RestoreMasterHook,
    TriggerMasterHook,
)
from snapline.coordinator.checkpoint.events import MasterHookAnswered, MasterHookFailed, MasterHookRestored
from snapline.coordinator.io import IoExecutor
from snapline.dataflow.api.master_hooks import (
    MasterTriggerRestoreHook,
    WithMasterCheckpointHook,
    create_hooks,
    functions_with_hooks,
)
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import SinkFunctionSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import MasterState
from snapline.runtime.clock import SystemClock
from snapline.runtime.logs import silent_logger
from snapline.runtime.timers import TimerScheduler

ONE = CheckpointID(1)


class Hook(MasterTriggerRestoreHook[Any]):
    """Answers what it was given, and remembers its calls."""

    def __init__(self, identifier: str = "h", answer: Any = None) -> None:
        self._identifier = identifier
        self.answer = answer
        self.calls: list[Any] = []
        self.closed = threading.Event()

    @property
    def identifier(self) -> str:
        return self._identifier

    def trigger_checkpoint(self, checkpoint_id: int, timestamp_ms: int) -> Any:
        self.calls.append(("trigger", checkpoint_id, timestamp_ms))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def restore_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.calls.append(("restore", checkpoint_id, state))

    def close(self) -> None:
        self.calls.append(("close",))
        self.closed.set()
        raise OSError("gone already")


class Function(WithMasterCheckpointHook):
    """Brings a hook."""

    def __init__(self, identifier: str = "h") -> None:
        self.identifier = identifier

    def create_master_trigger_restore_hook(self) -> Hook:
        return Hook(self.identifier)


class Exiting(Function):
    """Wants the process to end."""

    def create_master_trigger_restore_hook(self) -> Hook:
        sys.exit("no licence")


class Desk:
    def __init__(self, *hooks: MasterTriggerRestoreHook[Any], limit_ms: int = 60_000) -> None:
        clock = SystemClock()
        self.timers = TimerScheduler(clock)
        self.told: queue.Queue[Any] = queue.Queue()
        io = IoExecutor(self.timers, clock, silent_logger(), threads=1)
        self.runner = MasterHookRunner(hooks, limit_ms, io, self.told.put)

    def ask(self, effect: Any) -> None:
        self.runner.performers()[type(effect)](effect)

    def answer(self) -> Any:
        return self.told.get(timeout=30)


@pytest.fixture
def desks() -> Iterator[list[Desk]]:
    made: list[Desk] = []
    yield made
    for desk in made:
        desk.runner.close()
        desk.timers.close()


def test_state_goes_out_and_comes_back(desks: list[Desk]) -> None:
    """Bytes need no serializer; no state is no state."""
    hook = Hook(answer=b"state")
    desk = Desk(hook)
    desks.append(desk)
    desk.ask(TriggerMasterHook("h", ONE, 5))
    stored = MasterState("h", 1, b"state")
    assert desk.answer() == MasterHookAnswered("h", ONE, stored)
    desk.ask(RestoreMasterHook("h", ONE, stored))
    assert desk.answer() == MasterHookRestored("h")
    desk.ask(RestoreMasterHook("h", ONE, None))
    assert desk.answer() == MasterHookRestored("h")
    desk.ask(ResetMasterHook("h"))
    assert desk.answer() == MasterHookRestored("h")
    hook.answer = None
    desk.ask(TriggerMasterHook("h", ONE, 6))
    assert desk.answer() == MasterHookAnswered("h", ONE)
    assert hook.calls[:3] == [("trigger", 1, 5), ("restore", 1, b"state"), ("restore", 1, None)]


def test_failures_are_answers(desks: list[Desk]) -> None:
    """What it raised is said; state that is not bytes names the way out."""
    hook = Hook(answer=OSError("no connection"))
    desk = Desk(hook)
    desks.append(desk)
    desk.ask(TriggerMasterHook("h", ONE, 5))
    assert desk.answer() == MasterHookFailed("h", ONE, "OSError: no connection")
    hook.answer = {"not": "bytes"}
    desk.ask(TriggerMasterHook("h", ONE, 5))
    assert "override serialize and deserialize" in desk.answer().detail


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(("raised", "said"), [(SystemExit(3), "SystemExit: 3"), (Mute(), "Mute: (its message")])
def test_whatever_a_hook_raises_is_an_answer(raised: BaseException, said: str, desks: list[Desk]) -> None:
    """It ended the thread of the hooks: nothing was answered, and no hook of the job was called any more."""
    hook = Hook(answer=raised)
    desk = Desk(hook)
    desks.append(desk)
    desk.ask(TriggerMasterHook("h", ONE, 5))
    answer = desk.answer()
    assert isinstance(answer, MasterHookFailed) and answer.detail.startswith(said)
    desk.ask(ResetMasterHook("h"))
    assert desk.answer() == MasterHookRestored("h")


def test_a_hook_that_hangs_is_given_up(desks: list[Desk]) -> None:
    """The checkpoint fails; so does what was asked for behind it, for as long as it hangs."""
    release = threading.Event()

    class Hanging(Hook):
        def reset(self) -> None:
            release.wait(60)

    desk = Desk(Hanging(), limit_ms=30)
    desks.append(desk)
    try:
        desk.ask(ResetMasterHook("h"))
        answer = desk.answer()
        assert isinstance(answer, MasterHookFailed) and "longer than 30 ms" in answer.detail
        assert answer.checkpoint_id is None
    finally:
        release.set()


def test_closing_happens_once_and_its_failure_is_only_logged(desks: list[Desk]) -> None:
    """By the effect, or at the latest when the job goes down."""
    first, second = Hook("a"), Hook("b")
    desk = Desk(first, second)
    desks.append(desk)
    desk.ask(CloseMasterHook("a"))
    desk.runner.close()
    assert first.closed.wait(30) and second.closed.wait(30)
    assert (first.calls, second.calls) == ([("close",)], [("close",)])
    assert desk.told.empty()


def test_functions_are_found_and_hooks_made() -> None:
    """From the specification of an operator to the hook in the coordinator."""
    spec = SinkFunctionSpec(Function("sink"))  # type: ignore[arg-type]
    (found,) = functions_with_hooks(spec)
    (hook,) = create_hooks((cloudpickle.dumps(found),))
    assert hook.identifier == "sink"
    assert functions_with_hooks("no specification") == []


@pytest.mark.parametrize(
    ("payloads", "message"),
    [
        ((b"rubbish",), "cannot be unpickled in the coordinator"),
        ((cloudpickle.dumps("no function"),), "str cannot create its master hook"),
        ((cloudpickle.dumps(Exiting()),), "Exiting cannot create its master hook: SystemExit: no licence"),
        ((cloudpickle.dumps(Function(" ")),), "needs an identifier that is not blank"),
        ((cloudpickle.dumps(Function()), cloudpickle.dumps(Function())), "two master hooks have the identifier 'h'"),
    ],
)
def test_hooks_that_cannot_be_made_are_refused(payloads: tuple[bytes, ...], message: str) -> None:
    """With the reason, before the job starts."""
    with pytest.raises(JobDefinitionError, match=message):
        create_hooks(payloads)
