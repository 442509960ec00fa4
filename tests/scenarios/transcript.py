"""Reading, playing and rewriting transcripts; knows no world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SEPARATOR = "----"


class World(Protocol):
    """What a transcript is told to."""

    def command(self, line: str) -> list[str]:
        """Take one command; returns the lines that come out. ValueError names a command that makes no sense."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """Some comments, some commands, and what they bring about."""

    comments: tuple[str, ...]
    commands: tuple[str, ...]
    expected: tuple[str, ...]
    line: int
    """Of the first command, for messages."""


def parse(text: str) -> list[Block]:
    """The blocks of a transcript; comments at the end become a block without commands."""
    blocks: list[Block] = []
    comments: list[str] = []
    commands: list[str] = []
    expected: list[str] = []
    start, in_output = 0, False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if in_output:
            if line.strip():
                expected.append(line)
                continue
            blocks.append(Block(tuple(comments), tuple(commands), tuple(expected), start))
            comments, commands, expected, in_output = [], [], [], False
        elif line.strip() == SEPARATOR:
            in_output = True
        elif line.startswith("#"):
            comments.append(line)
        elif line.strip():
            start = start if commands else number
            commands.append(line.strip())
        elif comments and not commands:
            comments.append("")
    if commands:
        raise ValueError(f"line {start}: no {SEPARATOR} after these commands")
    if any(comments):
        blocks.append(Block(tuple(comments), (), (), start))
    return blocks


def play(blocks: list[Block], make_world: Callable[[], World]) -> list[Block]:
    """The same blocks with what really came out."""
    world = make_world()
    played = []
    for block in blocks:
        got: list[str] = []
        for command in block.commands:
            try:
                got += world.command(command)
            except ValueError as error:
                raise ValueError(f"line {block.line}: {command}: {error}") from error
        played.append(Block(block.comments, block.commands, tuple(got or ["ok"]) if block.commands else (), block.line))
    return played


def render(blocks: list[Block]) -> str:
    """As it stands in the file."""
    parts = []
    for block in blocks:
        lines = list(block.comments)
        if block.commands:
            lines += [*block.commands, SEPARATOR, *block.expected]
        parts.append("\n".join(lines).strip("\n"))
    return "\n\n".join(parts) + "\n"


def differences(wanted: list[Block], got: list[Block]) -> list[str]:
    """Readable, by block."""
    found = []
    for before, after in zip(wanted, got, strict=True):
        if before.expected != after.expected:
            found.append(f"line {before.line}: {' / '.join(before.commands)}")
            found += [f"  - {line}" for line in before.expected if line not in after.expected]
            found += [f"  + {line}" for line in after.expected if line not in before.expected]
            if sorted(before.expected) == sorted(after.expected):
                found.append(f"  order: {list(after.expected)}")
    return found


def transcripts(folder: Path) -> list[Path]:
    """All transcripts below a folder."""
    return sorted(folder.rglob("*.txt"))
