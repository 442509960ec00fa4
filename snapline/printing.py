"""What commands print: a text of somebody else's job must not steer the terminal of who looks at it."""

from __future__ import annotations

import re

import click

_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but for the tab and the end of a line."""


def harmless(text: str) -> str:
    r"""The text with its control characters spelled out.

    >>> harmless("red:\x1b[31m")
    'red:\\x1b[31m'
    """
    return _STEERS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, or several, on standard output or, with `err`, on standard error."""
    click.echo(harmless(text), err=err)
