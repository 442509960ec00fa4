"""What commands print: a text of somebody else's job must not steer the terminal of who looks at it."""

from __future__ import annotations

import codecs
import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence

import click

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import harmless


def echo(text: str, *, err: bool = False) -> None:
    """Print a line, or several, on standard output or, with `err`, on standard error."""
    with _output_written():
        click.echo(_writable(text, err=err), err=err)


WIDE = 400
"""Columns where nobody looks: a table in a file or a pipe is not cut off."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table as wide as the terminal if there is one. Cells are shown as they are: nothing in them is markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(Text(_writable(column)))
    for row in rows:
        table.add_row(*(Text(_writable(cell)) for cell in row))
    is_looked_at = sys.stdout is not None and sys.stdout.isatty()
    console = Console(soft_wrap=True, width=None if is_looked_at else WIDE)
    with _output_written():
        with console.capture() as captured:
            console.print(table)
        click.echo(captured.get(), nl=False)


def _writable(text: str, *, err: bool = False) -> str:
    """The text without what steers a terminal, and with escapes for letters that the output's encoding has not. ASCII
    is none: click takes it for a mistake, and writes UTF-8."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    if codecs.lookup(encoding).name == "ascii":
        encoding = "utf-8"
    return harmless(text).encode(encoding, "backslashreplace").decode(encoding)


@contextlib.contextmanager
def _output_written() -> Iterator[None]:
    """Raises SnaplineError where the output goes to a full disk, say. That nobody reads a pipe any more is none."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SnaplineError(
            f"cannot write the output: {error.strerror or error}; make room where it goes, or direct it elsewhere"
        ) from error
