"""Declarations for tests, short."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import ParseDict

from snapline.protos.declared_pb2 import DeclaredExpression, DeclaredJob, DeclaredValue

COLUMNS = [
    {"name": "shop", "type": "string"},
    {"name": "cents", "type": "int64"},
    {"name": "at", "type": "timestamp[us]"},
]


def source(uid: str = "orders", name: str = "FileSource", **options: Any) -> dict[str, Any]:
    """A source of files; other `options` take the place of its path."""
    given = options or {"paths": {"stringValue": "/orders"}}
    return {
        "uid": uid,
        "source": {"connector": {"name": name, "options": given}, "columns": COLUMNS, "watermarks": {"column": "at"}},
    }


def sink(of: str, name: str = "DiscardingSink", **options: Any) -> dict[str, Any]:
    """A sink called `out`."""
    return {"uid": "out", "inputs": [of], "sink": {"name": name, "options": options}}


def operator(uid: str, *inputs: str, **what: Any) -> dict[str, Any]:
    """Any other operator."""
    return {"uid": uid, "inputs": list(inputs), **what}


def job(*operators: dict[str, Any], **more: Any) -> DeclaredJob:
    """The declaration, as a client's JSON would say it."""
    return ParseDict({"name": "declared", "operators": list(operators), **more}, DeclaredJob())


def call(function: str, *operands: Any) -> dict[str, Any]:
    """A call in an expression: texts that begin with $ are columns."""
    return {"call": {"function": function, "operands": [operand(each) for each in operands]}}


def operand(value: Any) -> dict[str, Any]:
    """A column, a call, or a literal."""
    if isinstance(value, dict):
        return value
    if isinstance(value, str) and value.startswith("$"):
        return {"column": value[1:]}
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    return {"literal": {} if value is None else {kinds[type(value)]: value}}


def expression(declared: dict[str, Any]) -> DeclaredExpression:
    """The message of an expression."""
    return ParseDict(declared, DeclaredExpression())


def value(declared: dict[str, Any]) -> DeclaredValue:
    """The message of a value."""
    return ParseDict(declared, DeclaredValue())
