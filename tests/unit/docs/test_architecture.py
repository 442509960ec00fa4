"""ARCHITECTURE.md stays a page whose walks can be followed file by file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
WALKS = ("The walk of a job", "The walk of a batch", "The walk of a checkpoint")
LONGEST_PAGE = 120
"""Lines; more is no page any more."""


def steps_of(walk: str) -> list[tuple[str, list[str]]]:
    """What happens, and where, for each row of the table below a heading."""
    section = PAGE.split(f"## {walk}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    return [(what.strip(), re.findall(r"`([^`]+)`", where)) for what, where in rows]


@pytest.mark.parametrize("walk", WALKS)
def test_every_step_of_a_walk_names_files_that_are_there(walk):
    """A newcomer opens what the page names, and finds rules at its top and code below them."""
    steps = steps_of(walk)
    names = [name for _, where in steps for name in where]

    assert [] == [what for what, where in steps if not where]
    assert [] == [name for name in names if not (ROOT / name).exists()]
    assert [] == [
        name for name in names if name.endswith(".py") and not ast.get_docstring(ast.parse((ROOT / name).read_text()))
    ]
    assert [] == [name for name in names if name.endswith("/") and not list((ROOT / name).rglob("*.py"))]


def test_the_architecture_is_a_page():
    """Who has never seen the code reads it in one go."""
    assert LONGEST_PAGE >= len(PAGE.splitlines())
