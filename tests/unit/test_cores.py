"""Cores decide in one way: they dispatch by `match`, and return what is to be done (runtime/cores/machine.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.unit.test_layers import is_core, modules, name_of

CORE_FILES = [path for path in modules() if is_core(name_of(path))]
FILLING = frozenset({"append", "extend", "add", "update", "insert", "setdefault", "appendleft"})
FILLED_ON_PURPOSE = {
    "create_input(created)": "a task closes the channels that it has, also when its wiring fails halfway",
}
"""Parameters that a function fills, and why it may."""


def parsed() -> Iterator[tuple[str, ast.Module]]:
    """All modules of cores, with their names."""
    for path in CORE_FILES:
        yield name_of(path), ast.parse(path.read_text())


def filled_parameters(tree: ast.AST) -> Iterator[str]:
    """Collections that a function got from its caller and puts something into, as `function(parameter)`."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        collections = {
            argument.arg
            for argument in arguments
            if argument.annotation is not None
            and ast.unparse(argument.annotation).startswith(("list[", "dict[", "set[", "deque[", "Effects"))
        }
        for node in ast.walk(function):
            target: ast.expr | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FILLING:
                target = node.func.value
            elif isinstance(node, ast.AugAssign):
                target = node.target
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                target = node.targets[0].value
            if isinstance(target, ast.Name) and target.id in collections:
                yield f"{function.name}({target.id})"


def tables_of_methods(core: ast.ClassDef) -> Iterator[int]:
    """Lines of dictionaries whose values are methods of the object, by which somebody would dispatch."""
    methods = {f"self.{each.name}" for each in core.body if isinstance(each, ast.FunctionDef)}
    for node in ast.walk(core):
        if isinstance(node, ast.Dict) and len(node.values) > 1 and methods >= set(map(ast.unparse, node.values)):
            yield node.lineno


def test_no_core_fills_what_its_caller_passed() -> None:
    """Effects and findings are returned, so that who reads a call sees what comes of it."""
    found = {f"{name}: {filled}" for name, tree in parsed() for filled in filled_parameters(tree)}

    assert [] == sorted(each for each in found if each.split(": ")[1] not in FILLED_ON_PURPOSE)


def test_every_core_dispatches_by_match() -> None:
    """A class with `handle(event...)` tells events apart by `match`, and by no table of methods."""
    without_match, with_table = [], []
    for name, tree in parsed():
        for core in ast.walk(tree):
            if not isinstance(core, ast.ClassDef):
                continue
            entries = [each for each in core.body if isinstance(each, ast.FunctionDef) and each.name == "handle"]
            takes_events = any(len(entry.args.args) > 1 and entry.args.args[1].arg == "event" for entry in entries)
            is_contract = any(ast.unparse(base).startswith("Protocol") for base in core.bases)
            if takes_events and not is_contract and not any(isinstance(node, ast.Match) for node in ast.walk(core)):
                without_match.append(f"{name}.{core.name}")
            with_table += [f"{name}:{line}" for line in tables_of_methods(core)]

    assert ([], []) == (without_match, with_table)


@pytest.mark.parametrize(
    ("source", "filled"),
    [
        ("def f(out: list[int]) -> None:\n    out.append(1)", ["f(out)"]),
        ("def f(out: dict[str, int]) -> None:\n    out['a'] = 1", ["f(out)"]),
        ("def f(found: list[int]) -> list[int]:\n    return [*found, 1]", []),
    ],
)
def test_a_filled_parameter_is_found(source: str, filled: list[str]) -> None:
    """The check itself works."""
    assert filled == list(filled_parameters(ast.parse(source)))
