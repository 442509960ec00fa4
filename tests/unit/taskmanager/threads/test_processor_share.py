"""Shares of a host's processors: how they are divided, who counts, and that everything is given back."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.runtime.clock import ManualClock
from snapline.runtime.logs import make_logger
from snapline.taskmanager.threads import processor_share
from snapline.taskmanager.threads.processor_share import (
    LOOK_MS,
    MAX_BYTES_OF_NAMES,
    LinuxHost,
    ProcessorShare,
    shares,
)

# --- the division -----------------------------------------------------------------------------------------------------

NAMES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(1, 9_999), min_size=2, max_size=12)


@given(slots=NAMES, more=st.integers(0, 100))
def test_every_processor_belongs_to_one_task_manager_and_each_has_one(slots: dict[str, int], more: int):
    """Nothing is left over and nothing is given twice; neighbours are together, and more slots have no less."""
    processors = list(range(len(slots) + more))
    divided = shares(slots, processors)
    assert [each for name in sorted(divided) for each in divided[name]] == processors
    assert divided.keys() == slots.keys() and all(divided.values())
    largest, smallest = max(slots, key=slots.__getitem__), min(slots, key=slots.__getitem__)
    assert len(divided[largest]) + 1 >= len(divided[smallest])


@given(slots=NAMES)
def test_too_few_processors_are_not_divided(slots: dict[str, int]):
    """Two of them on one processor would be worse off than with none of their own."""
    assert shares(slots, list(range(len(slots) - 1))) == {}


# --- the shell --------------------------------------------------------------------------------------------------------


class Timers:
    """What is scheduled, to be run by the test."""

    def __init__(self) -> None:
        self.due: list[tuple[int, Callable[[], None]]] = []

    def schedule(self, at_ms: int, callback: Callable[[], None]) -> None:
        self.due.append((at_ms, callback))

    def fire(self) -> int:
        """Run what is due next; returns when that is."""
        at_ms, callback = self.due.pop(0)
        callback()
        return at_ms


class Host:
    """A host of so many processors; `names_of_all` are shown to each TaskManager on it."""

    def __init__(self, processors: int, names_of_all: set[str], *, can_announce: bool = True) -> None:
        self.processors: Sequence[int] = list(range(processors))
        self.bound: Sequence[int] = self.processors
        self._all = names_of_all
        self._shown = ""
        self._can_announce = can_announce

    def announce(self, name: str) -> bool:
        if self._can_announce:
            self._shown = name
            self._all.add(name)
        return self._can_announce

    def withdraw(self) -> None:
        self._all.discard(self._shown)

    def names(self) -> Sequence[str]:
        return sorted(self._all)

    def bind(self, processors: Sequence[int]) -> None:
        self.bound = processors


class TaskManagerOnHost:
    """One with tasks or without."""

    def __init__(self, host: Host, slots: int = 1) -> None:
        self.host = host
        self.timers = Timers()
        self.has_tasks = True
        self.log = io.StringIO()
        self.share = ProcessorShare(
            slots,
            self.timers,  # type: ignore[arg-type]
            ManualClock(0),
            lambda: self.has_tasks,
            make_logger("taskmanager", stream=self.log),
            host,
        )


def test_task_managers_with_tasks_divide_the_processors_and_an_idle_one_does_not_count():
    """The first one uses both until it sees the second one; once that has no task, the first one has both again."""
    names: set[str] = set()
    first, second = TaskManagerOnHost(Host(2, names)), TaskManagerOnHost(Host(2, names))
    first.share.work()
    assert first.host.bound == [0, 1]
    second.share.work()
    first.timers.fire()
    assert sorted([*first.host.bound, *second.host.bound]) == [0, 1]
    assert json.loads(first.log.getvalue())["context"]["processors"] == first.host.bound
    second.has_tasks = False
    second.timers.fire()
    assert second.host.bound == [0, 1] and not second.timers.due
    first.timers.fire()
    assert first.host.bound == [0, 1]


def test_it_looks_again_while_there_are_tasks():
    """One timer is scheduled at a time, however many tasks start, and none once there is no task."""
    one = TaskManagerOnHost(Host(2, set()))
    one.share.work()
    one.share.work()
    assert one.timers.fire() == LOOK_MS
    assert len(one.timers.due) == 1
    one.has_tasks = False
    one.timers.fire()
    assert not one.timers.due
    one.has_tasks = True
    one.share.work()
    assert len(one.timers.due) == 1


def test_threads_that_cannot_be_bound_are_bound_at_the_next_look(monkeypatch):
    """A process without a free file cannot see its threads; it had never looked again, and kept its share for ever."""
    names: set[str] = {"snapline-processors/1/another"}
    task_manager = TaskManagerOnHost(Host(4, names))
    task_manager.share.work()
    divided = task_manager.host.bound
    names.discard("snapline-processors/1/another")

    def refuse(_: Sequence[int]) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as without_files:
        without_files.setattr(task_manager.host, "bind", refuse)
        task_manager.timers.fire()
    assert task_manager.host.bound == divided != [0, 1, 2, 3]

    task_manager.timers.fire()
    assert task_manager.host.bound == [0, 1, 2, 3]


def test_what_ends_gives_everything_back_and_takes_nothing_more():
    """Spark uses the process again: it is bound to nothing, and its name is gone, also when a timer was on its way."""
    names: set[str] = set()
    first, second = TaskManagerOnHost(Host(4, names)), TaskManagerOnHost(Host(4, names), slots=3)
    first.share.work()
    second.share.work()
    second.share.close()
    assert second.host.bound == [0, 1, 2, 3] and len(names) == 1
    second.timers.fire()
    second.share.work()
    assert second.host.bound == [0, 1, 2, 3] and len(names) == 1


@pytest.mark.parametrize(
    "strange",
    ["snapline-processors/", "snapline-processors/0/a", "snapline-processors/99999/a", "snapline-processors/²/a"],
)
def test_names_that_no_task_manager_shows_do_not_count(strange: str):
    """Anybody on the host can show any name; what is not one of ours divides nothing."""
    one = TaskManagerOnHost(Host(2, {strange}))
    one.share.work()
    assert one.host.bound == [0, 1]


@pytest.mark.parametrize("host", [Host(0, set()), Host(1, set()), Host(2, set(), can_announce=False)])
def test_where_there_is_nothing_to_divide_nothing_is_looked_at(host: Host):
    """Another system, one processor, or a host on which no name can be shown."""
    one = TaskManagerOnHost(host)
    one.share.work()
    assert not one.timers.due


# --- the host ---------------------------------------------------------------------------------------------------------

BOUND = """
import os, threading
import pyarrow
from snapline.taskmanager.threads.processor_share import LinuxHost

host, ready, done = LinuxHost(), threading.Event(), threading.Event()
def waits():
    ready.set()
    done.wait()
thread = threading.Thread(target=waits)
thread.start()
ready.wait()
host.bind([1])
print({tuple(os.sched_getaffinity(int(each))) for each in os.listdir("/proc/self/task")})
print(pyarrow.cpu_count() == os.cpu_count())
host.bind(host.processors)
print(sorted(os.sched_getaffinity(thread.native_id)) == sorted(host.processors))
done.set()
os.sched_setaffinity(0, [0])
print(LinuxHost().processors)
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2 or not LinuxHost().processors,
    reason="needs two processors of Linux, all of which are allowed",
)
def test_all_threads_of_a_process_are_bound_and_what_was_bound_before_is_left_alone():
    """The process binds its threads to one, then to all; then somebody binds it, and it chooses no more. Arrow, which
    counts processors once, at its first use, has counted all of them before."""
    ran = subprocess.run([sys.executable, "-c", BOUND], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["{(1,)}", "True", "True", "[]"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="abstract names are Linux' own")
def test_a_name_is_shown_to_the_host_and_ends_with_its_socket():
    """Whoever reads the kernel's list finds it, as long as it is shown; shown twice, it is not."""
    name = f"snapline-processors/1/test-{os.getpid()}"
    host, other = LinuxHost(), LinuxHost()
    assert host.announce(name)
    assert name in other.names() and not other.announce(name)
    host.withdraw()
    assert name not in other.names()


def test_a_list_of_sockets_that_is_too_long_has_no_names(tmp_path, monkeypatch):
    """Nobody is found in it, so that the TaskManager uses all processors; with a line less everybody is found."""
    line = b"0000000000000000: 00000002 00000000 00000000 0002 01 1234 @snapline-processors/2/a\n"
    lines = MAX_BYTES_OF_NAMES // len(line)
    listed = tmp_path / "unix"
    monkeypatch.setattr(processor_share, "_SOCKETS", listed)
    listed.write_bytes(line * lines)
    assert len(LinuxHost().names()) == lines
    listed.write_bytes(line * (lines + 1))
    assert LinuxHost().names() == []


def test_without_a_file_descriptor_no_name_is_shown(monkeypatch):
    """The TaskManager goes on with all processors: it was its end, because its actor let the error out."""

    def refuse(*_arguments: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    assert not LinuxHost().announce("snapline-processors/1/a")
