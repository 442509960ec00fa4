"""What a TaskManager says of its threads can be said in a message, whatever they are called."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from snapline.dataflow.ids import ResourceID
from snapline.dataflow.wire.messages import RequestThreadDump, ThreadDump
from snapline.runtime.recent_output import RecentOutput
from snapline.taskmanager.threads.thread_dumper import MAX_NAME, MAX_SAMPLINGS, ThreadDumper


@contextmanager
def waiting_thread(name: str, file: str) -> Iterator[threading.Thread]:
    """A thread of this name that waits in a function of a file of that name."""
    entered, leave = threading.Event(), threading.Event()
    names: dict[str, Any] = {"entered": entered, "leave": leave}
    exec(compile("def wait():\n    entered.set()\n    leave.wait()\n", file, "exec"), names)
    thread = threading.Thread(target=names["wait"], name=name)
    thread.start()
    try:
        entered.wait()
        yield thread
    finally:
        leave.set()
        thread.join()


def dump_of(request: RequestThreadDump) -> ThreadDump:
    """What the dumper of this process answers."""
    dumper = ThreadDumper(ResourceID("tm"), dict, RecentOutput(), lambda _dump: None, lambda _level: None)
    try:
        return dumper.sample(request)
    finally:
        dumper.close()


@pytest.mark.parametrize("odd", ["half \udc80 of a character", "red \x1b[31m", "long " * 100_000], ids=lambda s: s[:4])
def test_threads_and_files_with_names_that_no_message_carries_are_shown(odd: str) -> None:
    """A function names its threads as it likes, and a file may have a name that is no UTF-8: the answer never came."""
    with waiting_thread(odd, odd):
        stacks = dump_of(RequestThreadDump("1")).stacks

    shown = [(stack.thread_name, *stack.frames) for stack in stacks if stack.thread_name.startswith(odd[:4])]
    assert shown
    for text in shown[0]:
        assert text.encode() and text.isprintable()
        assert len(text) <= 2 * MAX_NAME


def test_a_process_without_another_thread_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looked at a TaskManager whose host had no thread left ended it; and each look left a place taken."""
    answers: list[ThreadDump] = []
    answered = threading.Event()

    def answer(dump: ThreadDump) -> None:
        answers.append(dump)
        answered.set()

    dumper = ThreadDumper(ResourceID("tm"), dict, RecentOutput(), answer, lambda _level: None)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        for _ in range(MAX_SAMPLINGS + 1):
            dumper.dump(RequestThreadDump("1"))
    dumper.dump(RequestThreadDump("2"))
    assert answered.wait(30)
    dumper.close()
    assert [dump.request_id for dump in answers] == ["2"]


def test_looks_that_last_keep_nobody_from_a_single_one() -> None:
    """Whoever may ask about one job looked for ten minutes, and again: meanwhile nobody else saw a thread, or a line
    of the log, of the TaskManagers that the job shares with others."""
    answers: list[ThreadDump] = []
    answered = threading.Event()

    def answer(dump: ThreadDump) -> None:
        answers.append(dump)
        answered.set()

    dumper = ThreadDumper(ResourceID("tm"), dict, RecentOutput(), answer, lambda _level: None)
    for number in range(MAX_SAMPLINGS):
        dumper.dump(RequestThreadDump(f"long {number}", duration_ms=600_000))

    dumper.dump(RequestThreadDump("log", log_lines=1))

    assert answered.wait(30)
    assert ["log"] == [dump.request_id for dump in answers]
    dumper.close()
