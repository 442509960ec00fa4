"""What threads that really wait are said to wait for."""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from snapline.taskmanager.threads.thread_dumper import stack_of
from snapline.taskmanager.threads.waiting_calls import call_of, waits_for

PATIENCE_SECONDS = 20.0


class Held:
    """Things that somebody waits for, and how to let go of all of them."""

    def __init__(self) -> None:
        self.lock, self.reentrant, self.semaphore = threading.Lock(), threading.RLock(), threading.Semaphore(0)
        self.condition, self.event = threading.Condition(), threading.Event()
        self.future: Future[int] = Future()
        self.queue: queue.Queue[int] = queue.Queue()
        self.mine, self.theirs = socket.socketpair()
        for held in (self.lock, self.reentrant, self.condition):
            held.acquire()

    def enter(self) -> None:
        with self.lock:
            pass

    def enter_reentrant(self) -> None:
        with self.reentrant:
            pass

    def enter_condition(self) -> None:
        with self.condition:
            pass

    def acquire(self) -> None:
        self.lock.acquire()
        self.lock.release()

    def take_permit(self) -> None:
        self.semaphore.acquire()

    def wait_for_event(self) -> None:
        self.event.wait(PATIENCE_SECONDS)

    def take_result(self) -> None:
        self.future.result(PATIENCE_SECONDS)

    def take_from_queue(self) -> None:
        self.queue.get(timeout=PATIENCE_SECONDS)

    def receive(self) -> None:
        self.mine.recv(1)

    def read_lines(self) -> None:
        with self.mine.makefile() as lines:
            next(lines)

    def sleep(self) -> None:
        while not self.event.is_set():
            time.sleep(0.01)

    def count(self) -> None:
        while not self.event.is_set():
            sum(range(10_000))

    def let_go(self) -> None:
        for held in (self.lock, self.reentrant, self.condition):
            held.release()
        self.semaphore.release()
        self.event.set()
        self.future.set_result(1)
        self.queue.put(1)
        self.theirs.sendall(b"12\n")


@contextmanager
def at_work(function: Callable[[Held], None]) -> Iterator[int]:
    """A thread that runs the function, by its identifier."""
    held = Held()
    thread = threading.Thread(target=function, args=(held,), daemon=True)
    thread.start()
    try:
        yield thread.ident or 0
    finally:
        held.let_go()
        thread.join()
        held.mine.close()
        held.theirs.close()


def said(thread_id: int) -> str:
    """What the thread is said to wait for now."""
    frame = sys._current_frames()[thread_id]
    return waits_for(stack_of(thread_id), call_of(frame.f_code, frame.f_lasti))


@pytest.mark.parametrize(
    "function", [Held.enter, Held.enter_reentrant, Held.enter_condition, Held.acquire, Held.take_permit]
)
def test_a_thread_that_waits_for_a_lock(function: Callable[[Held], None]) -> None:
    """However it asks for it, in C or in Python."""
    with at_work(function) as thread_id:
        seen_within_patience(thread_id, "lock")


@pytest.mark.parametrize(
    "function", [Held.wait_for_event, Held.take_result, Held.take_from_queue, Held.receive, Held.read_lines]
)
def test_a_thread_that_waits_for_an_answer(function: Callable[[Held], None]) -> None:
    """Of another thread, or of somebody behind a socket."""
    with at_work(function) as thread_id:
        seen_within_patience(thread_id, "answer")


@pytest.mark.parametrize("function", [Held.sleep, Held.count])
def test_a_thread_that_works_or_sleeps_waits_for_nobody(function: Callable[[Held], None]) -> None:
    """A busy thread must not look as if somebody else were to blame."""
    with at_work(function) as thread_id:
        looks = [said(thread_id) for _ in range(50)]
    assert looks.count("") >= 45


def test_the_name_of_a_call_does_not_come_from_its_arguments() -> None:
    """What is called is looked up first, and begins where the call does."""
    found: list[str] = []

    class Service:
        def ask(self, question: str) -> str:
            frame = sys._getframe(1)
            found.append(call_of(frame.f_code, frame.f_lasti))
            return question

    service = Service()
    service.ask("acquire".upper().lower())
    assert found == ["ask"]


def seen_within_patience(thread_id: int, expected: str) -> None:
    """The thread needs a moment until it waits."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while said(thread_id) != expected and time.monotonic() < deadline:
        pass
    assert said(thread_id) == expected
