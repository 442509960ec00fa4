"""Tables of commands, whose cells are what other people's jobs say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from snapline.cli import Target
from snapline.printing import print_table


@pytest.mark.parametrize("said", ["night [/b] job", "[link=file:///x]here[/link]", "[/oops]"])
def test_cells_are_no_markup(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that closes what was never opened ended `snapline list` with a traceback, for everybody."""
    print_table(("NAME", said), [(said, "1")])

    assert said in capsys.readouterr().out.splitlines()[1]


def test_cells_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The host of a TaskManager is its own word, and so is what an exception says."""
    target: Any = SimpleNamespace(as_json=False)
    hosts = ["h\x1b]0;PWNED\x07\x1b[2J\x9b31m", "txt.\u202egnp"]

    Target.show(target, hosts, ["HOST", "SLOTS"], lambda host: (host, "1"))  # type: ignore[arg-type]

    out = capsys.readouterr().out
    assert "h\\x1b]0;PWNED\\x07\\x1b[2J\\x9b31m" in out and "txt.\\u202egnp" in out
    assert out.replace("\n", "").isprintable()
