"""What a process has written, kept for those who cannot reach its files."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from snapline.runtime.logs import make_logger
from snapline.runtime.recent_output import MAX_CHARACTERS, MAX_LINE, MAX_LINES, RecentOutput, last_lines


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_is_logged_and_what_is_printed_is_kept_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of their ends; a line that has no end yet is not said."""
    with RecentOutput() as recent:
        print("of a function")
        make_logger("taskmanager").info("of the log", token="hidden")
        sys.stdout.write("not yet a line")
        assert sys.stdout.isatty() is False
    first, second = recent.tail(10)
    assert first == "of a function"
    assert '"msg":"of the log"' in second
    assert "hidden" not in second
    written = capsys.readouterr()
    assert (written.out, written.err) == ("of a function\nnot yet a line", f"{second}\n")
    print("after its end")
    assert len(recent.tail(10)) == 2


def test_memory_and_messages_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    """However much is written, and however long its lines are."""
    with RecentOutput() as recent:
        for number in range(MAX_LINES + 100):
            print(number)
        assert recent.tail(2) == (str(MAX_LINES + 98), str(MAX_LINES + 99))
        assert len(recent.tail(10**6)) == MAX_LINES
        assert recent.tail(0) == ()
        print("x" * (10 * MAX_LINE))
        assert len(recent.tail(1)[0]) < 2 * MAX_LINE
        for _ in range(MAX_LINES):
            print("y" * MAX_LINE)
    assert sum(map(len, recent.tail(MAX_LINES))) <= MAX_CHARACTERS
    capsys.readouterr()


def test_the_last_lines_that_have_room_are_taken_whole() -> None:
    """So that the answers of many TaskManagers fit into one message together."""
    assert last_lines(["aaa", "bb", "c"], 3) == ("bb", "c")
    assert last_lines(["aaa", "bb", "c"], 2) == ("c",)
    assert last_lines(["aaa"], 2) == ()


def test_a_function_may_print_although_the_disk_below_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it prints is kept all the same, and no call of print fails a task."""
    monkeypatch.setattr(sys, "stdout", FullDisk())
    with RecentOutput() as recent:
        print("of a function", flush=True)
    assert recent.tail(10) == ("of a function",)


def test_halves_of_characters_are_kept_so_that_a_message_can_carry_them() -> None:
    """A function that printed the name of a file that is no UTF-8 cut its TaskManager off from who asked for logs."""
    recent = RecentOutput()
    recent.keep(["größe", "no \udcff here"])
    assert recent.tail(2) == ("größe", "no \\udcff here")
