"""What the memory of this process is used for: the types whose objects take most, and the containers that grow.

Both come from the garbage collector's list, at the begin and at the end of a look: nothing is traced meanwhile, so no
allocation is dearer. (`tracemalloc` would name lines, but to stop it ends a process with threads in Python 3.11, see
CPython's gh-128679.) A container is named by who holds it: a module, an object, or a function. Memory of libraries that
is no Python object (Arrow's buffers) is in neither.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import linecache
import sys
from types import CellType, FunctionType
from typing import Any

from snapline.dataflow.wire.messages import AllocationSite, HeapType

MAX_TYPES = 20
MAX_SITES = 5
MAX_OBJECTS = 100_000
"""Objects of the garbage collector's list that are looked at: of a longer one each n-th, which then counts n times,
because looking keeps other threads waiting."""
LARGE = 1_000
"""A container of so many is always looked at: it may be what has grown."""
SAMPLE = 200
"""Elements of a container whose sizes are taken for those of all."""
_CONTAINERS = (list, dict, set)


class HeapReading:
    """One look over some time."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}

    def begin(self) -> None:
        """Note how large containers are now."""
        self._before = {key: len(each) for key, each in _large(gc.get_objects()).items()}

    def end(self) -> tuple[tuple[HeapType, ...], tuple[AllocationSite, ...]]:
        """Types, and containers that have grown, those that take or have grown most first."""
        everything = gc.get_objects()
        grown = [
            (bytes_each * number, number, each)
            for each in _large(everything).values()
            if (number := len(each) - self._before.get(id(each), 0)) > 0
            for bytes_each in (_bytes_each(each),)
        ]
        types = _types(everything)
        del everything
        most = sorted(grown, key=lambda entry: -entry[0])[:MAX_SITES]
        return types, tuple(AllocationSite((_holder(each),), number, size) for size, number, each in most)


def _large(everything: list[Any]) -> dict[int, Any]:
    """The containers of many elements, by identity. A dictionary of texts and numbers alone is on no list of the
    collector: it is found with what holds it."""
    found: dict[int, Any] = {}
    for each in everything:
        if type(each) in _CONTAINERS and len(each) >= LARGE:
            found[id(each)] = each
        for held in gc.get_referents(each):
            if type(held) is dict and len(held) >= LARGE:
                found[id(held)] = held
    return found


def _bytes_each(container: Any) -> int:
    with contextlib.suppress(Exception):  # it may change meanwhile, and __sizeof__ be anybody's
        elements = container.values() if isinstance(container, dict) else container
        sizes = [sys.getsizeof(each) for each in itertools.islice(elements, SAMPLE)]
        return sum(sizes) // max(1, len(sizes)) + 8
    return 0


def _holder(container: Any) -> str:
    """Who holds the container, as `name (file:line)`."""
    for holder in gc.get_referrers(container):
        if type(holder) is dict and "__name__" in holder and "__builtins__" in holder:
            return _in_module(holder, container)
        if type(holder) is CellType:
            for closure in gc.get_referrers(holder):
                for function in gc.get_referrers(closure) if type(closure) is tuple else ():
                    if isinstance(function, FunctionType):
                        code = function.__code__
                        return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
        owner = _owner(holder, container)
        if owner:
            return owner
    return f"a {type(container).__name__} (?:0)"


def _in_module(names: dict[str, Any], container: Any) -> str:
    name = next((key for key, value in list(names.items()) if value is container), "?")
    file = str(names.get("__file__", "?"))
    lines = linecache.getlines(file)
    line = next((number for number, text in enumerate(lines, 1) if text.startswith(name)), 1)
    return f"{names['__name__'].rpartition('.')[2]}.{name} ({file}:{line})"


def _owner(holder: Any, container: Any) -> str:
    """The object whose attribute the container is; empty: the holder is none."""
    module = sys.modules.get(type(holder).__module__)
    attributes = getattr(holder, "__dict__", None)
    if module is None or not isinstance(attributes, dict) or isinstance(holder, type):
        return ""
    name = next((key for key, value in list(attributes.items()) if value is container), "")
    return f"{type(holder).__qualname__}.{name} ({getattr(module, '__file__', '?')}:1)" if name else ""


def _types(everything: list[Any]) -> tuple[HeapType, ...]:
    counted: dict[type, list[int]] = {}
    seen: set[int] = set()

    def count(thing: object, times: int) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        entry = counted.setdefault(type(thing), [0, 0])
        entry[0] += times
        with contextlib.suppress(Exception):  # __sizeof__ may be anybody's
            entry[1] += times * sys.getsizeof(thing)

    each_counts = 1 + len(everything) // MAX_OBJECTS
    for number, thing in enumerate(everything):
        holds = type(thing) in (list, dict, tuple, set, frozenset)
        is_large = holds and len(thing) >= LARGE
        if number % each_counts and not is_large:
            continue
        times = 1 if is_large else each_counts
        count(thing, times)
        for held in gc.get_referents(thing)[:MAX_OBJECTS] if holds else ():
            if not gc.is_tracked(held):
                count(held, times)
    most = sorted(counted.items(), key=lambda entry: -entry[1][1])[:MAX_TYPES]
    return tuple(
        HeapType(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), number, size)
        for kind, (number, size) in most
    )
