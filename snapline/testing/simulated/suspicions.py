"""Why an operator may have put out something else: what its function reads, calls and changes that is no state.

Looks at functions as the tasks have them, twice (when the operator was open, and at the end), and at their code. A
suspicion is a hint for whoever reads the story, and decides nothing: what decides is the output.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

MOST_TEXT = 400
"""Letters of a value that are compared."""
OURS = ("snapline.", "pyarrow", "numpy", "pandas", "polars")
_PLAIN = (int, float, str, bytes, bool, type(None), list, dict, set, frozenset, tuple)
_CALLS = {
    ("time",): "reads the clock: a replay reads another time",
    ("time_ns",): "reads the clock: a replay reads another time",
    ("monotonic",): "reads the clock: a replay reads another time",
    ("perf_counter",): "reads the clock: a replay reads another time",
    ("datetime", "now"): "reads the clock: a replay reads another time",
    ("datetime", "utcnow"): "reads the clock: a replay reads another time",
    ("date", "today"): "reads the clock: a replay reads another time",
    ("random",): "draws random numbers: a replay draws others",
    ("secrets",): "draws random numbers: a replay draws others",
    ("uuid4",): "draws a random id: a replay draws another",
    ("uuid1",): "draws an id from the clock: a replay draws another",
    ("urandom",): "draws random bytes: a replay draws others",
    ("hash",): "calls hash(), whose answer for a text differs in each process",
    ("id",): "calls id(), whose answer differs in each process",
    ("getpid",): "asks for the number of its process",
    ("attempt_number",): "asks which attempt it is: the output must not depend on that",
    ("current_processing_time",): "reads processing time: a replay reads another time",
    ("register_processing_time_timer",): "has timers by processing time: they fire at other rows in a replay",
    ("get_union_list_state",): "reads a union list state: every subtask gets the elements of all of them",
    ("subtask_index",): "asks for the number of its subtask: after a rescale other rows come to it",
}
"""What a function's code may name, and what is suspicious about it."""
_SET_OPCODES = frozenset({"BUILD_SET", "SET_ADD", "SET_UPDATE"})
SETS = "goes through a set, or makes one: its order differs in each process"


class FunctionWatch:
    """The functions of all operators of a run, as they were when they were open."""

    def __init__(self, baseline: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """`baseline`: what globals and attributes of classes were before the first run (`values_before`)."""
        self._baseline = baseline or {}
        self._arrived: dict[str, list[Any]] = {}
        self._opened: dict[str, list[tuple[Any, dict[str, str]]]] = {}

    def arrived(self, uid: str, spec: Any) -> None:
        """A task has got the functions of an operator."""
        self._arrived.setdefault(uid, []).extend(functions_of(spec))

    def opened(self, uid: str) -> None:
        """The operator is open: what changes from now on does so while it works."""
        for function in self._arrived.pop(uid, ()):
            self._opened.setdefault(uid, []).append((function, _values_of(function)))

    def changes(self, uid: str) -> list[str]:
        """Sentences on what has changed that is no state."""
        found: dict[str, None] = {}
        baseline = self._baseline.get(uid, {})
        for function, opened in self._opened.get(uid, ()):
            before = {**opened, **baseline}
            keeps = hasattr(function, "snapshot_state")
            for where, text in _values_of(function).items():
                if before.get(where, text if where.startswith("the global") else "") != text:
                    found[_said(where, keeps)] = None
        return list(found)


def values_before(specs: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What the functions of a job share with all that runs in this process, by the uid of their operator."""
    return {
        uid: {
            where: text
            for function in functions_of(spec)
            for where, text in _values_of(function).items()
            if not where.startswith("self.")
        }
        for uid, spec in specs.items()
    }


def _said(where: str, keeps: bool) -> str:
    if where.startswith("self.") and keeps:
        return f"{where} changes while rows come: look whether snapshot_state writes all of it, and initialize_state reads it"
    if where.startswith("self."):
        return f"{where} changes while rows come, and is no state: after a restart it is what it was when the job was submitted"
    return f"{where} changes while rows come, and is no state: a checkpoint does not hold it, and a restart does not set it back"


def functions_of(spec: Any) -> list[Any]:
    """What a user has given to an operator: functions, and objects with methods."""
    if not is_dataclass(spec):
        return []
    values = [getattr(spec, field.name) for field in fields(spec)]
    return [value for value in values if _is_the_users(value)]


def _is_the_users(value: Any) -> bool:
    if isinstance(value, (str, bytes, int, float, bool, tuple, list, dict, type(None))):
        return False
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return not (value.__module__ or "").startswith(OURS)
    return _is_a_users_class(type(value))


def _is_a_users_class(one: type) -> bool:
    """Whether a class is neither ours nor Python's own."""
    if one.__module__ == "builtins":
        return vars(builtins).get(one.__name__) is not one
    return not one.__module__.startswith((*OURS, "abc", "typing"))


# --- values -----------------------------------------------------------------------------------------------------------


def _values_of(function: Any) -> dict[str, str]:
    """Texts of what a function could keep something in, by where that is."""
    found: dict[str, str] = {}
    if not isinstance(function, (types.FunctionType, types.MethodType)):
        for name, value in getattr(function, "__dict__", {}).items():
            _note(found, f"self.{name}", value)
        for one in type(function).__mro__:
            if _is_a_users_class(one):
                for name, value in vars(one).items():
                    if not name.startswith("__") and f"self.{name}" not in found:
                        _note(found, f"the class attribute {one.__name__}.{name}", value)
    for code in _functions_in(function):
        read = {name for inner in _codes(code.__code__) for name in inner.co_names}
        for name in read & code.__globals__.keys():
            _note(found, f"the global {name}", code.__globals__[name])
        for name, cell in zip(code.__code__.co_freevars, code.__closure__ or (), strict=True):
            try:
                _note(found, f"the variable {name} around the function", cell.cell_contents)
            except ValueError:  # it is empty
                continue
    return found


def _note(found: dict[str, str], where: str, value: Any) -> None:
    if isinstance(value, _PLAIN) or type(value).__module__ in ("collections", "itertools", "random"):
        text = repr(value)
        found[where] = f"{len(text)} {text[:MOST_TEXT]} {text[-MOST_TEXT:]}"


# --- code -------------------------------------------------------------------------------------------------------------


def calls_of(spec: Any) -> list[str]:
    """Sentences on what the functions of an operator call, with where that is."""
    found: dict[str, None] = {}
    for value in functions_of(spec):
        for function in _functions_in(value):
            for code in _codes(function.__code__):
                for sentence in _named(code):
                    found[f"{sentence} ({_place(function)})"] = None
    return list(found)


def depends_on_hashes(spec: Any) -> bool:
    """Whether the functions of an operator may go through a set, or call hash()."""
    return any(
        SETS in _named(code) or {"hash"} & set(code.co_names)
        for value in functions_of(spec)
        for function in _functions_in(value)
        for code in _codes(function.__code__)
    )


def _named(code: types.CodeType) -> list[str]:
    names = set(code.co_names)
    found = [said for needed, said in _CALLS.items() if names.issuperset(needed)]
    if {"set", "frozenset"} & names or any(step.opname in _SET_OPCODES for step in dis.get_instructions(code)):
        found.append(SETS)
    return found


def _place(function: types.FunctionType) -> str:
    return f"{function.__qualname__}, {Path(function.__code__.co_filename).name}:{function.__code__.co_firstlineno}"


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, with that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _functions_in(value: Any) -> list[types.FunctionType]:
    """The Python functions behind a callable or an object, and those that they call by a global name."""
    found: dict[types.FunctionType, None] = {}
    _collect(value, found)
    return list(found)


def _collect(value: Any, found: dict[types.FunctionType, None]) -> None:
    unwrapped: Callable[..., Any] = inspect.unwrap(value) if callable(value) else value
    if isinstance(unwrapped, types.MethodType):
        unwrapped = unwrapped.__func__
    if isinstance(unwrapped, types.FunctionType):
        if unwrapped in found or (unwrapped.__module__ or "").startswith(OURS):
            return
        found[unwrapped] = None
        for code in _codes(unwrapped.__code__):
            for name in code.co_names:
                called = unwrapped.__globals__.get(name)
                if isinstance(called, types.FunctionType) and not _is_of_the_library(called):
                    _collect(called, found)
        return
    for one in type(value).__mro__:
        if _is_a_users_class(one):
            for member in vars(one).values():
                if isinstance(member, types.FunctionType):
                    _collect(member, found)


def _is_of_the_library(function: types.FunctionType) -> bool:
    """Whether a function belongs to Python or an installed package, of which nobody wants to hear."""
    path = function.__code__.co_filename
    return "site-packages" in path or path.startswith(("<frozen", str(Path(inspect.__file__).parent)))
