"""`snapline external submit`: what it takes, and what it refuses before a coordinator is asked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from snapline.cli import cli

AWAY = "no coordinator answers at 127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--task", "a=\u00b2"], "--task a=\u00b2: say NAME=NUMBER, for example --task orders=2"),
        (["--task", "a=" + "9" * 5000], "9: say NAME=NUMBER, for example --task orders=2"),
        (["--task", "a=3000000000"], "'a' with 3000000000 programs: give it a name, and one to 32768 programs"),
        (["--task", "a=1", "-D", "nothing=1"], "-D nothing: there is no such setting"),
        (["--task", "a=1", "-D", "state.backend.local-recovery=true"], AWAY),
        (["--task", "a=1", "-D", "external.own=1"], AWAY),
    ],
)
def test_what_is_said_of_options(options: list[str], said: str) -> None:
    """One line for a number that is none or too large, where there was a traceback. A setting may be called by either
    of its names."""
    ended = CliRunner().invoke(cli, ["external", "submit", "fleet", *options, "-m", "127.0.0.1:1"])
    assert ended.exit_code != 0
    assert said in f"{ended.output}{ended.exception}"
