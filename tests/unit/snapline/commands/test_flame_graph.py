"""The flame graph of `snapline flame`: names of jobs and frames come from users, and are text in it."""

from __future__ import annotations

import json

import pytest

from snapline.commands.flame_graph import flame_graph

HOSTILE = "<img src=x onerror=alert(1)></script><!--<script>"


@pytest.mark.parametrize("title", ["__DATA__", "__TITLE__", HOSTILE])
def test_names_are_text_wherever_they_stand(title: str) -> None:
    """A job whose name is one of the marks of the page had the texts of frames as HTML in its heading."""
    page = flame_graph(title, {(HOSTILE, "__TITLE__", "__DATA__"): 3})
    assert ("<img" in page, page.count("<script>"), page.count("</script>")) == (False, 1, 1)
    data = page.partition("const root = ")[2].partition(";\n")[0]
    frame = json.loads(data)["b"][0]
    assert (HOSTILE, ["__TITLE__"]) == (frame["n"], [each["n"] for each in frame["b"]])
    heading = page.partition("<h1")[2].partition("</h1>")[0].partition(">")[2]
    assert heading == title.replace("<", "&lt;").replace(">", "&gt;")
