"""Diagrams of the documentation are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from snapline.dataflow.config import OPTIONS
from snapline.diagrams import DIAGRAMS, UnknownDiagram, render

PAGE = Path(__file__).resolve().parents[3] / "docs" / "checkpoints.md"


def test_the_page_shows_the_tables_as_they_are() -> None:
    """When this fails: `python -m snapline.diagrams docs/checkpoints.md`."""
    page = PAGE.read_text()

    assert render(page) == page
    assert set(re.findall(r"<!-- diagram: ([a-z-]+) -->", page)) == set(DIAGRAMS)


def test_settings_that_the_page_names_exist() -> None:
    """A renamed setting would otherwise stay in the page for ever."""
    named = set(re.findall(r"`((?:execution|pipeline)\.[a-z.-]+)", PAGE.read_text()))

    assert named
    assert named <= set(OPTIONS), named - set(OPTIONS)


def test_every_diagram_is_mermaid_with_a_beginning() -> None:
    """Each state that can be reached is drawn, and the first one is marked."""
    for name, draw in DIAGRAMS.items():
        lines = draw().splitlines()
        assert lines[0] == "stateDiagram-v2", name
        assert lines[1].strip().startswith("[*] --> "), name
        assert len(lines) > 4, name


def test_a_diagram_that_nobody_draws_is_named() -> None:
    """With those that there are."""
    with pytest.raises(UnknownDiagram, match="no diagram 'coffee'; there are job-status"):
        render("<!-- diagram: coffee -->\n<!-- end -->\n")
