"""Tables of commands, whose cells are what other people's jobs say."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snapline.commands.printing import echo, print_table
from snapline.commands.target import Target
from snapline.dataflow.errors import SnaplineError


@pytest.mark.parametrize("said", ["night [/b] job", "[link=file:///x]here[/link]", "[/oops]"])
def test_cells_are_no_markup(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that closes what was never opened ended `snapline list` with a traceback, for everybody."""
    print_table(("NAME", said), [(said, "1")])

    assert said in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize("prints", [lambda: echo("path"), lambda: print_table(("NAME",), [("night",)])])
def test_output_to_a_full_disk_is_one_line(prints: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command answers goes to a file there, say; it ended with a traceback of click or rich."""
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SnaplineError, match=r"cannot write the output: No space left on device; make room"):
            prints()
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_a_table_of_a_process_without_standard_output_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every other line does: `snapline list >&-` is asked for its exit code alone."""
    monkeypatch.setattr(sys, "stdout", None)
    print_table(("NAME",), [("night",)])
    echo("path")


@pytest.mark.parametrize(("encoding", "seen"), [("ascii", "jöb 日本"), ("latin-1", "jöb \\u65e5\\u672c")])
def test_letters_that_the_output_has_not(encoding: str, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a locale of 1990 a job's name ended `snapline list` with a traceback, for everybody; ASCII is taken for a
    mistake, as click does, and gets UTF-8."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    print_table(("NAME",), [("jöb 日本",)])
    echo("jöb 日本")
    said = written.getvalue().decode("utf-8" if encoding == "ascii" else encoding)
    assert [line.strip() for line in said.splitlines()] == ["NAME", seen, seen]


def test_cells_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The host of a TaskManager is its own word, and so is what an exception says."""
    target: Any = SimpleNamespace(as_json=False)
    hosts = ["h\x1b]0;PWNED\x07\x1b[2J\x9b31m", "txt.\u202egnp"]

    Target.show(target, hosts, ["HOST", "SLOTS"], lambda host: (host, "1"))  # type: ignore[arg-type]

    out = capsys.readouterr().out
    assert "h\\x1b]0;PWNED\\x07\\x1b[2J\\x9b31m" in out and "txt.\\u202egnp" in out
    assert out.replace("\n", "").isprintable()
