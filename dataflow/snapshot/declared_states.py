"""The states that a function declares, found without running it: so that a job is held against a snapshot before it
starts.

Decides where descriptors are looked for: in attributes of the object and of its classes, in globals and closures that
its methods name, also within a module or class, and in expressions such as
`context.get_state(ValueStateDescriptor("count", pa.int64()))` in the source of its methods. An expression is evaluated
only if all that it calls comes from Arrow, the standard library's datetime or Snapline, so that nothing of the user's
runs. What cannot be found so is checked when the task opens the function. Nothing like it in Flink, which learns of
states when the task asks for them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pyarrow as pa

from snapline.dataflow.api.state import MIGRATED_METADATA, StateDescriptor
from snapline.dataflow.columnar.arrow_columns import plain_type
from snapline.dataflow.snapshot.state_format import KEY_COLUMN, STATE_COLUMN, with_role

_HARMLESS = frozenset({"pyarrow", "snapline", "datetime"})
_OWN = frozenset({"snapline", "builtins", "abc", "typing"})
"""Modules whose classes have no states of the user's."""
_MOST_STEPS = 50
"""Names that one expression may be made of."""


def declared_states(function: object) -> tuple[StateDescriptor, ...]:
    """The descriptors of a function object, each name once, in no order that means anything. Names that are declared in
    two ways are left out: only the function knows which it takes, in whatever task."""
    found: dict[str, StateDescriptor | None] = {}
    for descriptor in filter(None, _descriptors(function)):
        known = found.setdefault(descriptor.name, descriptor)
        if known is not None and not known.to_field().equals(descriptor.to_field(), check_metadata=True):
            found[descriptor.name] = None
    return tuple(descriptor for descriptor in found.values() if descriptor is not None)


def declared_names(function: object) -> frozenset[str]:
    """The names of all states that a function object declares; none where one is declared in a way that tells nothing
    before the function runs."""
    found = list(_descriptors(function))
    return (
        frozenset() if None in found else frozenset(descriptor.name for descriptor in found if descriptor is not None)
    )


def declared_schema(states: Sequence[StateDescriptor], keys: Sequence[pa.Field]) -> pa.Schema:
    """What the coordinator is told: columns as in a file of keyed state, as far as they are known."""
    fields = []
    for key in keys:
        try:
            fields.append(with_role(pa.field(key.name, plain_type(key.type)), KEY_COLUMN))
        except TypeError:  # no key at all, which the task says with more words
            return pa.schema([])
    for state in states:
        field = with_role(state.to_field(), STATE_COLUMN)
        marked = {**field.metadata, MIGRATED_METADATA: b"1"} if state.migrate is not None else field.metadata
        fields.append(field.with_metadata(marked))
    return pa.schema(fields)


def _descriptors(function: object) -> Iterator[StateDescriptor | None]:
    """Those that the function declares; None for each of which no more is known."""
    classes = [one for one in type(function).__mro__ if one.__module__.partition(".")[0] not in _OWN]
    for values in (getattr(function, "__dict__", {}), *(vars(one) for one in classes)):
        yield from _in_values(values.values())
    for one in classes:
        for member in vars(one).values():
            method = getattr(member, "__func__", member)
            if isinstance(method, FunctionType):
                yield from _in_method(method, function)


def _in_values(values: Any) -> Iterator[StateDescriptor]:
    for value in values:
        if isinstance(value, StateDescriptor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (each for each in value if isinstance(each, StateDescriptor))
        elif isinstance(value, dict):
            yield from (each for each in value.values() if isinstance(each, StateDescriptor))


def _in_method(method: FunctionType, function: object) -> Iterator[StateDescriptor | None]:
    closure = _closure(method)
    named = [method.__globals__[name] for name in _names(method.__code__) if name in method.__globals__]
    yield from _in_values([*named, *closure.values()])
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError):  # no source: typed in, or generated
        return
    bound = Counter(name for part in ast.walk(tree) if part is not tree.body[0] for name in _bound_by(part))
    known = {name: value for name, value in {**method.__globals__, **closure}.items() if name not in bound}
    known["self"] = function
    assigned = {
        statement.targets[0].id: statement.value
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
        and bound[statement.targets[0].id] == 1
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_descriptor_class(node.func, known):
            value = _evaluated(node, known, assigned, _MOST_STEPS)
            yield value if isinstance(value, StateDescriptor) else None
        elif isinstance(node, ast.Attribute) and isinstance(value := _looked_up(node, known), StateDescriptor):
            yield value


def _bound_by(part: ast.AST) -> tuple[str, ...]:
    """The name that gets a value there: within a method it means nothing else, and of several values nobody knows
    which."""
    if isinstance(part, ast.arg):
        return (part.arg,)
    if isinstance(part, ast.alias):
        return (part.asname or part.name.partition(".")[0],)
    if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return (part.name,)
    return (part.id,) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) else ()


def _closure(method: FunctionType) -> dict[str, Any]:
    """The variables around a method, but for those that have no value yet, or none any more."""
    found = {}
    for name, cell in zip(method.__code__.co_freevars, method.__closure__ or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_descriptor_class(callee: ast.expr, known: Mapping[str, Any]) -> bool:
    value = _looked_up(callee, known)
    return isinstance(value, type) and issubclass(value, StateDescriptor)


def _looked_up(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The object that a dotted name stands for, None for anything else."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _looked_up(node.value, known)
        if isinstance(owner, ModuleType) and owner.__name__ == "snapline":  # loads its names when they are asked for
            return getattr(owner, node.attr, None)
        return None if owner is None else inspect.getattr_static(owner, node.attr, None)
    return None


def _evaluated(node: ast.expr, known: Mapping[str, Any], assigned: Mapping[str, ast.expr], steps: int) -> Any:
    """The value of a harmless expression; None for any other, and for one that fails."""
    scope = dict(known)
    for part in _executed(node):
        if isinstance(part, ast.Call) and not _is_harmless(part.func, known):
            return None
        if isinstance(part, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
            return None
        if isinstance(part, ast.Name) and part.id in assigned and part.id not in known:
            if steps <= 0:
                return None
            scope[part.id] = _evaluated(assigned[part.id], known, assigned, steps - 1)
    try:
        return eval(compile(ast.Expression(node), "<state descriptor>", "eval"), scope)  # noqa: S307 - harmless, see above
    except Exception:
        return None


def _executed(node: ast.expr) -> Iterator[ast.AST]:
    """The expression and its parts, but for what a lambda would do if it were called."""
    yield node
    if not isinstance(node, ast.Lambda):
        for part in ast.iter_child_nodes(node):
            yield from _executed(part)  # type: ignore[arg-type]


def _is_harmless(callee: ast.expr, known: Mapping[str, Any]) -> bool:
    value = _looked_up(callee, known)
    module = getattr(value, "__module__", None) or ""
    return value is not None and module.partition(".")[0] in _HARMLESS
