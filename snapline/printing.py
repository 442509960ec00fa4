"""What commands print: a text of somebody else's job must not steer the terminal of who looks at it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters but for the tab and the end of a line, and halves of characters, which nobody can print."""


def harmless(text: str) -> str:
    r"""The text with its control characters spelled out.

    >>> harmless("red:\x1b[31m")
    'red:\\x1b[31m'
    """
    return _STEERS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, or several, on standard output or, with `err`, on standard error."""
    click.echo(harmless(text), err=err)


WIDE = 400
"""Columns where nobody looks: a table in a file or a pipe is not cut off."""


def console() -> Console:
    """Standard output for tables, as wide as the terminal if it is one."""
    from rich.console import Console

    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
