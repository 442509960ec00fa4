"""What our chart uses of Helm's template language: values, `if`, `if not`, `range ... until`, the checksum of
another template, and `{{-`. Anything else is an error here.

Inside of a `range` the dot is the element, as in Helm: there `$.Values` is what is `.Values` elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

_ACTION = re.compile(r"(?:\s*\{\{-|\{\{) (.*?) \}\}")
_CHECKSUM = re.compile(r'include \(print \$\.Template\.BasePath "/(\S+)"\) \. \| sha256sum')
_RANGE = re.compile(r"range (\$\w+) := until \(int (\S+)\)")

Block = list["str | tuple[str, Block]"]
"""Text, and actions with what stands between them and their `end`."""


def render(template: str, root: Mapping[str, Any]) -> str:
    """The text that comes out. `root`: what `.` is."""
    text = _rendered(_parsed(template), {"": root, "$": root})
    if "{{" in text:
        raise ValueError("an action that is not understood")
    return text


def _parsed(template: str) -> Block:
    end = 0
    blocks: list[Block] = [[]]
    for match in _ACTION.finditer(template):
        blocks[-1].append(template[end : match.start()])
        end = match.end()
        if match[1] == "end":
            blocks.pop()
            continue
        inner: Block = []
        blocks[-1].append((match[1], inner))
        if match[1].startswith(("if ", "range ")):
            blocks.append(inner)
    (whole,) = blocks
    return [*whole, template[end:]]


def _rendered(block: Block, names: Mapping[str, Any]) -> str:
    out = ""
    for piece in block:
        if isinstance(piece, str):
            out += piece
            continue
        action, inner = piece
        if repeated := _RANGE.fullmatch(action):
            elements = range(int(_value(repeated[2], names)))
            out += "".join(_rendered(inner, {**names, "": i, repeated[1]: i}) for i in elements)
        elif action.startswith("if "):
            out += _rendered(inner, names) if _value(action.removeprefix("if "), names) else ""
        else:
            out += str(_value(action, names))
    return out


def _value(expression: str, names: Mapping[str, Any]) -> Any:
    if included := _CHECKSUM.fullmatch(expression):
        root = names["$"]
        return hashlib.sha256(render(root["Templates"][included[1]], root).encode()).hexdigest()
    if expression.startswith("not "):
        return not _value(expression.removeprefix("not "), names)
    name, *path = expression.split(".")
    found = names[name]
    for part in path:
        found = found[part]
    return found
