"""The thread of a task: works while there is work, sleeps while there is none, and lets nothing escape."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from snapline.runtime.clock import SystemClock
from snapline.runtime.timers import TimerScheduler
from snapline.taskmanager.task.stream_task import Progress, ProgressKind, StreamTask
from snapline.taskmanager.threads.task_thread import TaskThread
from snapline.taskmanager.threads.turns import Turns

WORKED, OVER = Progress(ProgressKind.WORKED), Progress(ProgressKind.FINISHED)


class Script:
    """A task whose steps are given."""

    def __init__(self, steps):
        self.steps = list(steps)
        self.slept = threading.Event()
        self.abandoned = []

    def step(self, now_ms):
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        if step.kind is not ProgressKind.WORKED:
            self.slept.set()
        return step

    def abandon(self, error):
        self.abandoned.append(error)


def thread_of_a_task(limit=2):
    clock = SystemClock()
    return TaskThread("task", clock, Turns(limit, TimerScheduler(clock), clock))


def run(*steps):
    thread = thread_of_a_task()
    task = Script(steps)
    thread.start(cast("StreamTask", task))
    return thread, task


def test_it_steps_to_the_end():
    """And the thread ends with the task."""
    thread, task = run(WORKED, WORKED, OVER)
    assert thread.join(20)
    assert task.steps == []


def test_an_idle_task_is_woken():
    """By whoever puts something into its mailbox."""
    thread, task = run(Progress(ProgressKind.IDLE), OVER)
    assert task.slept.wait(20)
    thread.wake_up()
    assert thread.join(20)


def test_a_wake_up_between_two_steps_is_not_lost():
    """It rang before the task decided to sleep."""
    thread = thread_of_a_task()

    class Restless(Script):
        def step(self, now_ms):
            thread.wake_up()
            return super().step(now_ms)

    thread.start(cast("StreamTask", Restless([Progress(ProgressKind.BACKPRESSURED), OVER])))
    assert thread.join(20)


@pytest.mark.parametrize("kind", [ProgressKind.IDLE, ProgressKind.BACKPRESSURED])
def test_a_task_is_called_again_at_its_time(kind):
    """Also when that has passed."""
    now = SystemClock().now_ms()
    thread, task = run(Progress(kind, now + 5), Progress(kind, now - 1000), OVER)
    assert thread.join(20)
    assert task.steps == []


def test_a_task_that_never_rests_lets_others_work():
    """The only turn goes round, in the middle of its work: the restless one would go on until the other one has
    ended."""
    clock = SystemClock()
    turns = Turns(1, TimerScheduler(clock), clock)
    threads = [TaskThread("restless", clock, turns), TaskThread("other", clock, turns)]
    has_begun, other_has_ended = threading.Event(), threading.Event()

    class Restless(Script):
        def step(self, now_ms):
            has_begun.set()
            return OVER if other_has_ended.is_set() else WORKED

    class Other(Script):
        def step(self, now_ms):
            other_has_ended.set()
            return OVER

    threads[0].start(cast("StreamTask", Restless([])))
    assert has_begun.wait(20)
    threads[1].start(cast("StreamTask", Other([])))
    assert [thread.join(20) for thread in threads] == [True, True]


def test_what_a_step_lets_out_abandons_the_task():
    """A defect of ours: reported as the failure of the task, never as a thread that died."""
    defect = RuntimeError("two barriers with one id")
    thread, task = run(WORKED, defect)
    assert thread.join(20)
    assert task.abandoned == [defect]


def test_a_thread_that_was_never_started_has_ended():
    """For tasks that could not be built."""
    assert thread_of_a_task().join(0)
