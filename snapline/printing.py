"""What commands print: a text of somebody else's job must not steer the terminal of who looks at it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from snapline.runtime.logs import harmless

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, or several, on standard output or, with `err`, on standard error."""
    click.echo(harmless(text), err=err)


WIDE = 400
"""Columns where nobody looks: a table in a file or a pipe is not cut off."""


def console() -> Console:
    """Standard output for tables, as wide as the terminal if it is one."""
    from rich.console import Console

    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
