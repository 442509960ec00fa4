"""Runs that once found a bug, each as a file of its options in `kept/`, so that it stays as it was whatever seeds are
drawn to be later.

`python -m tests.simulation 42 --keep "what went wrong"` writes the file of seed 42. A field that `Options` or `JobPlan`
gets needs a default, with which kept runs are as before.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from tests.simulation.options import Options

DIRECTORY = Path(__file__).with_name("kept")


def kept_runs() -> list[Path]:
    """The files of all kept runs, in order of their names."""
    return sorted(DIRECTORY.glob("*.json"))


def keep(options: Options, found: str, path: Path | None = None) -> Path:
    """Write the file of a run and what it found; it is named by its seed unless `path` says otherwise."""
    path = path or DIRECTORY / f"{options.seed}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"found": found, "options": _plain(options)}, indent=1) + "\n", encoding="utf-8")
    return path


def read_run(path: Path) -> Options:
    """Read the options of a kept run."""
    options = _value(Options, json.loads(path.read_text(encoding="utf-8"))["options"])
    assert isinstance(options, Options)
    return options


def _plain(value: Any) -> Any:
    """Turn a value of Options into what JSON has."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    match value:
        case Enum():
            return value.value
        case frozenset():
            return sorted(value)
        case tuple() | list():
            return [_plain(item) for item in value]
    return value


def _value(kind: Any, plain: Any) -> Any:
    """Turn what JSON has into a value of this type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if plain is None else _value(next(item for item in inner if item is not type(None)), plain)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _value(hints[name], item) for name, item in plain.items()})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    if origin is tuple:
        kinds = [inner[0]] * len(plain) if inner[-1] is Ellipsis else inner
        return tuple(_value(item, value) for item, value in zip(kinds, plain, strict=True))
    if origin is frozenset:
        return frozenset(plain)
    return plain
