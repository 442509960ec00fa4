"""What many tasks say on one stream, and which of them writes it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from snapline.taskmanager.network.flight.upstream_messages import UpstreamMessages

PATIENCE_S = 60


class Written:
    """A writer that does something in the middle of each write."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.during: list[Callable[[], object]] = []

    def write_metadata(self, buf: bytes, /) -> None:
        if self.during:
            self.during.pop()()
        self.messages.append(buf)

    def close(self) -> None: ...


def test_who_speaks_while_another_one_writes_does_not_wait_and_is_heard() -> None:
    """A task would spend its turn on the writes of others: here one speaks in the middle of a write, and goes on."""
    written, messages = Written(), UpstreamMessages()
    messages.begin(written)
    seen_before_the_write_ended: list[list[bytes]] = []

    def another_task_speaks() -> None:
        task = threading.Thread(target=messages.say, args=(b"second",))
        task.start()
        task.join(PATIENCE_S)
        assert not task.is_alive(), "the task waits for the write of another one"
        seen_before_the_write_ended.append(list(written.messages))

    written.during.append(another_task_speaks)
    messages.say(b"first")
    assert seen_before_the_write_ended == [[]]
    assert written.messages == [b"first", b"second"]


def test_nothing_is_lost_or_written_twice_between_many_tasks() -> None:
    """Eight tasks speak at once, and each one's messages come whole and in its order."""
    written, messages = Written(), UpstreamMessages()
    started = threading.Barrier(8)

    def speak(task: int) -> None:
        started.wait(PATIENCE_S)
        for number in range(500):
            messages.say(b"%d %d" % (task, number))

    tasks = [threading.Thread(target=speak, args=(task,)) for task in range(8)]
    for task in tasks:
        task.start()
    messages.begin(written)
    for task in tasks:
        task.join(PATIENCE_S)
    for speaker in range(8):
        said = [message for message in written.messages if message.startswith(b"%d " % speaker)]
        assert said == [b"%d %d" % (speaker, number) for number in range(500)]


def test_what_is_said_before_the_stream_is_up_goes_first() -> None:
    """The requests for channels are said while the stream still connects."""
    written, messages = Written(), UpstreamMessages()
    messages.say(b"open")
    written.during.append(lambda: messages.say(b"credit"))
    messages.begin(written)
    assert written.messages == [b"open", b"credit"]


def test_nothing_is_written_after_the_end() -> None:
    """A stream has ended, and one of its tasks still speaks."""
    written, messages = Written(), UpstreamMessages()
    messages.begin(written)
    assert messages.end() is written
    messages.say(b"late")
    assert (written.messages, UpstreamMessages().end()) == ([], None)


def test_a_lost_connection_is_no_matter_of_the_task_that_writes() -> None:
    """The receiving thread learns of the loss and says the cause, so the write may not raise."""

    class Lost(Written):
        def write_metadata(self, buf: bytes, /) -> None:
            raise pa.ArrowInvalid("the other side is gone")

    messages = UpstreamMessages()
    messages.begin(Lost())
    messages.say(b"credit")
