"""Every transcript comes out as it is written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.transcript import Block, differences, parse, play, render, transcripts
from tests.scenarios.worlds import FOLDER, world_of


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in transcripts(FOLDER)])
def test_transcript(path: Path) -> None:
    """The core answers what the file says; if it should, python -m tests.scenarios --rewrite writes it down."""
    blocks = parse(path.read_text(encoding="utf-8"))

    assert differences(blocks, play(blocks, world_of(path))) == []


def test_rendering_is_stable() -> None:
    """What is parsed and rendered again is the same text, so a rewrite shows only what changed."""
    for path in transcripts(FOLDER):
        text = path.read_text(encoding="utf-8")

        assert render(parse(text)) == text


def test_difference_names_the_line() -> None:
    """A wrong expectation is shown with its commands, what was wanted and what came."""
    wanted = parse("say a\n----\nb\n")
    got = [Block((), ("say a",), ("a",), 1)]

    assert differences(wanted, got) == ["line 1: say a", "  - b", "  + a"]


def test_commands_without_output_are_refused() -> None:
    """A forgotten separator does not pass silently."""
    with pytest.raises(ValueError, match="line 1: no ----"):
        parse("say a\n")
