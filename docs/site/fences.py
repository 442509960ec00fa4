"""Examples in docstrings begin with `>>>`, which Markdown takes for a quotation: each becomes a block of code on the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*)+", re.MULTILINE)


class Fences(griffe.Extension):
    """Puts a fence around every example, when a docstring has been read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            fenced = EXAMPLE.sub(lambda found: f"```pycon\n{found.group(0).rstrip()}\n```\n", obj.docstring.value)
            obj.docstring.value = fenced
