"""The arrows between the rooms, and what a core may not know.

Reads every module's imports, the ones inside functions too, and says in which room an offending line belongs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ROOMS: dict[str, frozenset[str]] = {
    "protos": frozenset(),
    "dataflow": frozenset({"protos"}),
    "runtime": frozenset({"protos", "dataflow"}),
    "connectors": frozenset({"protos", "dataflow", "runtime"}),
    "coordinator": frozenset({"protos", "dataflow", "runtime"}),
    "taskmanager": frozenset({"protos", "dataflow", "runtime"}),
    "snapline": frozenset({"protos", "dataflow", "runtime", "connectors", "coordinator", "taskmanager"}),
}
"""Each room and the rooms that it may import. Nothing else: not tests, examples or benchmarks either."""

FACE = "snapline"
"""The one name in Python; also the room that users meet."""

OUTSIDE = frozenset({"tests", "examples", "benchmarks", "deploy"})

CORES = (
    "snapline.runtime.cores",
    "snapline.coordinator.checkpoint",
    "snapline.coordinator.dispatcher",
    "snapline.coordinator.jobmaster",
    "snapline.coordinator.execution",
    "snapline.coordinator.resource",
    "snapline.coordinator.external",
    "snapline.taskmanager.checkpointing",
    "snapline.taskmanager.executor",
    "snapline.taskmanager.network.channels",
    "snapline.taskmanager.task",
    "snapline.taskmanager.state",
    "snapline.taskmanager.operators",
    "snapline.taskmanager.programs.program_place",
    "snapline.taskmanager.snapshots.planning",
)
"""Rooms and wings whose code has no thread, lock, clock, socket, file, random number or log."""

NOT_IN_CORES = frozenset(
    """asyncio concurrent fcntl glob http io kazoo logging multiprocessing obstore os pathlib pykka pyspark queue random
    secrets select selectors shutil signal socket socketserver ssl structlog subprocess sys tempfile threading
    time urllib uuid grpc""".split()
)
CALLS_NOT_IN_CORES = frozenset({"open", "print", "input", "id", "hash"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})

BACKENDS: dict[str, frozenset[str]] = {
    "snapline.taskmanager.state.outside.segment_files": frozenset({"os", "pathlib", "tempfile"}),
}
"""State backends that are files by nature, and what those may import."""

LIBRARIES: dict[str, tuple[str, ...]] = {
    "grpc": ("snapline.protos", "snapline.runtime", "snapline.coordinator.rpc", "snapline.coordinator.__main__", "snapline.coordinator.cluster_entrypoint", "snapline"),
    "pykka": ("snapline.runtime", "snapline.coordinator", "snapline.taskmanager", "snapline"),
    "kazoo": ("snapline.runtime", "snapline.coordinator.ha"),
    "structlog": ("snapline.runtime", "snapline.coordinator", "snapline.taskmanager", "snapline"),
    "obstore": ("snapline.runtime", "snapline"),
    "pyspark": ("snapline",),
    "pyarrow.flight": ("snapline.taskmanager.network.flight",),
    "click": ("snapline", "snapline.coordinator.__main__"),
    "rich": ("snapline",),
    "pandas": (),
    "polars": (),
}  # fmt: skip
"""Where alone a library may be imported (in the product; cores are narrowed further above)."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, where."""

    target: str
    line: int
    for_types_only: bool


def modules() -> list[Path]:
    """Every module of the product that people write."""
    return sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py") if "_pb2" not in p.name)


def name_of(path: Path) -> str:
    """Dotted name of a module file: the rooms are folders at the top, and parts of the package `snapline`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    inside = parts if parts[0] == FACE else (FACE, *parts)
    return ".".join(inside[:-1] if inside[-1] == "__init__" else inside)


def room_of(module: str) -> str:
    """The room that a module of Snapline lies in: `snapline` itself, when it is in none of the others."""
    _, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    return room if room in ROOMS else FACE


def file_of(module: str) -> str:
    """Where people find a module."""
    return (module if room_of(module) == FACE else module.removeprefix(f"{FACE}.")).replace(".", "/") + ".py"


def within(module: str, package: str) -> bool:
    """Whether a module is the package, or inside it."""
    return module == package or module.startswith(f"{package}.")


def lies_in(module: str, place: str) -> bool:
    """Whether a module lies in a place: a room, a wing, or the face, which is what lies in no other room."""
    return room_of(module) == FACE if place == FACE else within(module, place)


def is_core(module: str) -> bool:
    """Whether the rules for cores hold for this module."""
    return any(within(module, core) for core in CORES)


def imports(tree: ast.AST, module: str) -> Iterator[Import]:
    """All imports of a module, wherever they stand."""
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, id(node) in typing_only)


def violations(source: str, module: str) -> list[str]:
    """Every broken rule of one module, with the way out."""
    tree = ast.parse(source)
    room = room_of(module)
    found = []
    for item in imports(tree, module):
        where = f"{file_of(module)}:{item.line}"
        top = item.target.split(".")[0]
        target = room_of(item.target) if top == FACE else top
        if top in OUTSIDE:
            found.append(f"{where}: imports {item.target}; the product never imports {top}/")
        elif top in ROOMS and top != FACE:
            found.append(f"{where}: imports {item.target}; the only name is {FACE}: {FACE}.{item.target}")
        elif target in ROOMS and target != room and target not in ROOMS[room]:
            found.append(f"{where}: {room} imports {item.target}; {way_out(room, target)}")
        for library, places in LIBRARIES.items():
            if within(item.target, library) and not any(lies_in(module, place) for place in places):
                found.append(
                    f"{where}: imports {item.target}; only in {', '.join(places) or 'tests, examples, benchmarks'}"
                )
        if is_core(module) and not item.for_types_only and top in NOT_IN_CORES - backend_imports(module):
            found.append(
                f"{where}: a core imports {item.target}; hand it in as a value or an event, or make it an effect of the shell"
            )
    if is_core(module):
        found.extend(f"{file_of(module)}:{line}: a core {what}" for line, what in impure_calls(tree))
    return found


def backend_imports(module: str) -> frozenset[str]:
    """What a state backend may import beyond a core's."""
    return frozenset().union(*(allowed for backend, allowed in BACKENDS.items() if within(module, backend)))


def impure_calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls that make a core depend on more than its arguments."""
    inside_hash = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in CALLS_NOT_IN_CORES and id(node) not in inside_hash:
            yield node.lineno, f"calls {called.id}(); it differs from run to run or touches the outside"
        if (
            isinstance(called, ast.Attribute)
            and called.attr in CLOCK_METHODS
            and ast.unparse(called.value).split(".")[-1] in {"datetime", "date"}
        ):
            yield node.lineno, f"reads the clock by {ast.unparse(called)}(); time is an argument"


def way_out(room: str, target: str) -> str:
    """Where the code belongs instead."""
    if {room, target} == {"coordinator", "taskmanager"}:
        return "the two meet in messages: put what both need into dataflow/ (data) or runtime/ (behaviour)"
    lowest = next(name for name in ROOMS if name == target or target in ROOMS[name])
    return f"arrows point down only: move the importing code up to {lowest}/, or what it needs down to {room}/"


@pytest.mark.parametrize("room", ROOMS)
def test_the_room_keeps_its_arrows(room: str) -> None:
    """No module of the room imports what it may not, anywhere in its code."""
    found = [
        line
        for path in modules()
        if path.relative_to(ROOT).parts[0] == room
        for line in violations(path.read_text(), name_of(path))
    ]

    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        (
            "snapline.coordinator.rpc.x",
            "def f():\n    from snapline.taskmanager.task import y",
            "the two meet in messages",
        ),
        ("snapline.dataflow.x", "import snapline.runtime.cores.machine", "move the importing code up to runtime/"),
        ("snapline.protos.x", "import snapline.client", "move the importing code up to snapline/"),
        ("snapline.client", "import dataflow.ids", "the only name is snapline: snapline.dataflow.ids"),
        ("snapline.runtime.x", "import tests.conftest", "the product never imports tests/"),
        ("snapline.coordinator.checkpoint.x", "import time", "a core imports time"),
        ("snapline.coordinator.checkpoint.x", "def f():\n    import threading", "a core imports threading"),
        ("snapline.coordinator.execution.x", "from datetime import datetime\ndatetime.now()", "reads the clock"),
        ("snapline.taskmanager.state.x", "hash('a')", "calls hash()"),
        ("snapline.taskmanager.state.x", "import tempfile", "a core imports tempfile"),
        ("snapline.taskmanager.actors.x", "from pyarrow import flight", "only in snapline.taskmanager.network.flight"),
        ("snapline.taskmanager.actors.x", "import pyarrow.flight as fl", "only in snapline.taskmanager.network.flight"),
        (
            "snapline.coordinator.actors.x",
            "import grpc",
            "only in snapline.protos, snapline.runtime, snapline.coordinator.rpc",
        ),
        ("snapline.x", "import pandas", "only in tests, examples, benchmarks"),
    ],
)
def test_a_broken_rule_is_found_and_explained(module: str, source: str, message: str) -> None:
    """The check itself works: each kind of offence is seen."""
    assert any(message in line for line in violations(source, module)), violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("snapline.taskmanager.state.outside.segment_files.backend", "import tempfile, os"),
        (
            "snapline.coordinator.checkpoint.x",
            "from __future__ import annotations\nfrom snapline.dataflow.ids import JobID\nimport math",
        ),
        ("snapline.coordinator.checkpoint.x", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import random"),
        ("snapline.taskmanager.network.flight.x", "from pyarrow import flight"),
        ("snapline.client", "import grpc\nfrom snapline.coordinator.cluster_entrypoint import main"),
        ("snapline.coordinator.checkpoint.x", "from . import y\nfrom .z import q"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    """No rule fires on code that is in the right room."""
    assert [] == violations(source, module)


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that reach each other (Tarjan's strongly connected components), with more than one member."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for target in sorted(arrows.get(node, ())):
            if target not in index:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], index[target])
        if lowest[node] == index[node]:
            at = stack.index(node)
            members = stack[at:]
            del stack[at:]
            if len(members) > 1:
                found.append(sorted(members))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


FLUENT = frozenset(
    f"snapline.{name}" for name in ("connected", "environment", "execution", "joined", "keyed", "stream", "windowed")
)
"""The fluent classes return each other: a stream has windows, windows have streams."""


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Whoever reads a module can read what it is built from first; imports inside functions count, those for types only
    do not."""
    known = {name_of(path): path for path in modules()}
    arrows: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for item in imports(ast.parse(path.read_text()), name):
            target = item.target if item.target in known else item.target.rpartition(".")[0]
            if target in known and target not in (name, FACE) and not item.for_types_only:
                arrows[name].add(target)

    found = [circle for circle in circles(arrows) if not FLUENT.issuperset(circle)]

    assert found == []


def test_a_circle_is_found() -> None:
    """The check itself works: two modules that import each other, and a third that only imports them."""
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"a", "b"}}) == [["a", "b"]]


def test_every_place_with_a_permission_exists() -> None:
    """A room or module that a rule names is there; otherwise the rule allows what nobody looks at."""
    named = {*CORES, *BACKENDS, *(place for places in LIBRARIES.values() for place in places)} - {FACE}
    missing = [
        name for name in named if not (ROOT / file_of(name)).exists() and not (ROOT / file_of(name)[:-3]).is_dir()
    ]

    assert not missing, f"rules about places that do not exist: {missing}"
