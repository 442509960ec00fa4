"""What `import snapline as sl` gives, and what it leaves alone."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import snapline as sl
from snapline.dataflow.api import connector_api, function_contexts, functions, state, windows
from tests.services.public_face import PUBLIC_MODULES, public_objects

ROOT = Path(__file__).resolve().parents[3]
CONTRACTS = {
    name
    for room in (connector_api, function_contexts, functions, state, windows)
    for name, value in vars(room).items()
    if isinstance(value, type) and value.__module__ == room.__name__
}


def test_every_public_name_can_be_had():
    """Names are loaded when they are asked for: each of them exists where the table says."""
    assert [] == [name for name in sl.__all__ if not hasattr(sl, name)]


def test_a_star_import_leaves_python_alone():
    """`sum`, `min` and `max` of Python stay what they are in a program that says `from snapline import *`."""
    assert set() == set(sl.__all__) & set(vars(builtins))


@pytest.mark.parametrize("name", ["sum", "min", "max", "mean"])
def test_aggregates_have_plain_names(name):
    """`sl.sum("v")` is the aggregate of that name over that column."""
    assert (name, "v") == (getattr(sl, name)("v").function, getattr(sl, name)("v").column)


@pytest.mark.parametrize("name", ["sum", "min", "max"])
def test_old_names_of_aggregates_name_the_new(name):
    """`from snapline import sum_` is refused with one line that says what the name is now."""
    with pytest.raises(ImportError) as caught:
        exec(f"from snapline import {name}_")
    assert f"snapline.{name}_ is called snapline.{name} now: import snapline as sl, and say sl.{name}" == str(
        caught.value
    )


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules of Snapline that a program imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def programs() -> Iterator[tuple[str, str]]:
    """The examples, and every piece of Python in the pages for users."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, found in enumerate(re.findall(r"```python[^\n]*\n(.*?)```", path.read_text(), re.DOTALL)):
            yield f"{path.relative_to(ROOT)}, program {number}", found


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in programs()])
def test_examples_and_pages_import_public_modules_only(text):
    """What a user copies from us needs `snapline` and the modules of it that are named as public."""
    ours = {name for name in imported(ast.parse(text)) if name.partition(".")[0] == "snapline"}
    assert set() == ours - set(PUBLIC_MODULES)


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_a_public_module_says_what_it_gives(module):
    """It has `__all__`, and all of it is there."""
    found = importlib.import_module(module)
    assert [] == [name for name in found.__all__ if not hasattr(found, name)]


def test_what_public_methods_take_and_give_is_public():
    """A user can name each contract that a public function or method speaks of, in an annotation of a function of their
    own."""
    public = {name.rpartition(".")[2] for name, _ in public_objects()}
    missing: set[str] = set()
    for _, value in public_objects():
        if not isinstance(value, type) or not value.__module__.startswith("snapline.dataflow.api"):
            continue
        for member in vars(value).values():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            for annotation in getattr(function, "__annotations__", {}).values():
                words = set(re.findall(r"[A-Z]\w+", str(annotation)))
                missing |= {word for word in words if word in CONTRACTS and word not in public}
    assert set() == missing
