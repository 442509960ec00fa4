"""Functions and methods that are `async def` where they are called and nothing awaits what they return: a filter would
be true for every row, and a writer or a committer would do nothing at all, in a job that finishes. Nor would a
generator where nobody takes what it yields."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, TypeVar

from snapline.dataflow.errors import ConnectorError, SnaplineError

WITHOUT_A_BASE = (
    "open", "close", "snapshot_state", "initialize_state", "notify_checkpoint_complete", "notify_checkpoint_aborted",
)  # fmt: skip
"""What is called on functions that have these methods and extend nothing of Snapline's."""
T = TypeVar("T")


def is_async(function: object) -> bool:
    """Whether a call of this function gives something that is to be awaited.

    >>> async def later(row): ...
    >>> is_async(later), is_async(len)
    (True, False)
    """
    return _is_async(function) or (callable(function) and _is_async(type(function).__call__))


def refuse_async_methods(of: T, where: str = "", error: type[SnaplineError] = ConnectorError) -> T:
    """Return the object. Raises the error, which begins with `where`, for a method that is `async def` although what
    it stands for is called and not awaited, or a generator although nobody takes what it yields."""
    for name in _called(type(of)):
        method = getattr(type(of), name, None)
        if inspect.isgeneratorfunction(method) and _answers_nothing(type(of), name):
            raise error(
                f"{where}{type(of).__name__}.{name} has a `yield`, and nobody takes what it yields, so that it never runs: let it do "
                "its work and return (a SourceFunction emits by context.collect(row))"
            )
        if _is_async(method):
            raise error(
                f"{where}{type(of).__name__}.{name} is `async def`, and nothing awaits it: it is a plain `def` "
                "(only async_invoke of an AsyncFunction is awaited)"
            )
    return of


def _called(kind: type[Any]) -> Iterator[str]:
    yield from WITHOUT_A_BASE
    for base in kind.__mro__:
        if base.__module__.startswith("snapline."):
            for name, method in vars(base).items():
                if inspect.isfunction(method) and not name.startswith("_") and not _is_async(method):
                    yield name


def _answers_nothing(kind: type[Any], name: str) -> bool:
    """Whether the contract of a method says that it returns None."""
    methods = (vars(base).get(name) for base in kind.__mro__ if base.__module__.startswith("snapline."))
    return any(getattr(method, "__annotations__", {}).get("return") == "None" for method in methods)


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
