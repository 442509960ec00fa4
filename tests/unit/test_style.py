"""House rules that no linter knows: what stands in the tree, how files and tests introduce themselves."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON_ROOTS = (
    "protos",
    "dataflow",
    "runtime",
    "connectors",
    "coordinator",
    "taskmanager",
    "snapline",
    "examples",
    "benchmarks",
    "tests",
)
LONGEST_FILE = 800
"""Lines. Most good files have 100 to 400."""

BANNED = {
    # Spelled in pieces, so that this file does not find itself.
    r"\bpypi\."
    r"org|python"
    r"hosted|npm"
    r"js\.|registry\."
    r"\w+\.\w|deb\.deb"
    r"ian|security\.deb"
    r"ian": "the host of a registry; ordinary clients know theirs",
    r"(?<![\w.}$])/(work|root)" + r"/\w": "a path of some developer's machine",
    r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b": "unfinished work; do it, or write it down as a known limit in the docs",
}
FORBIDDEN_NAMES = frozenset({"utils.py", "util.py", "helpers.py", "helper.py", "misc.py", "common.py"})


@functools.cache
def text_of(path: Path) -> str:
    """The text of a file, read once for all tests."""
    return path.read_text()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once for all tests: that is nearly all that these tests cost."""
    return ast.parse(text_of(path))


@functools.cache
def files_of_the_project() -> list[Path]:
    """What git has or would take, as paths that exist."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return [ROOT / name for name in sorted(set(listed.stdout.split("\0"))) if name and (ROOT / name).is_file()]


def python_files(*, generated: bool = False) -> list[Path]:
    """Python files of the project's own rooms."""
    return [
        p
        for p in files_of_the_project()
        if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in PYTHON_ROOTS and (generated or "_pb2" not in p.name)
    ]


def shown(path: Path) -> str:
    """Path as people say it."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("pattern", BANNED)
def test_nothing_banned_stands_in_the_tree(pattern: str) -> None:
    """No registry hosts, no paths of one machine, no unfinished notes, in any text file."""
    expression = re.compile(pattern)
    found = []
    for path in files_of_the_project():
        try:
            text = text_of(path)
        except UnicodeDecodeError:
            continue
        lines = text.splitlines() if expression.search(text) else []
        found += [
            f"{shown(path)}:{n}: {line.strip()[:120]}" for n, line in enumerate(lines, 1) if expression.search(line)
        ]

    assert not found, f"{BANNED[pattern]}:\n" + "\n".join(found)


def test_no_file_is_too_long() -> None:
    """A file has one job."""
    found = [f"{shown(p)}: {n} lines" for p in python_files() if (n := len(text_of(p).splitlines())) > LONGEST_FILE]

    assert not found, f"longer than {LONGEST_FILE} lines; split by what each part decides:\n" + "\n".join(found)


def test_no_file_is_named_after_nothing() -> None:
    """A file is named by what it decides."""
    found = [shown(p) for p in python_files() if p.name in FORBIDDEN_NAMES]

    assert not found, f"name these by what they decide: {found}"


def test_every_module_says_what_it_is_for() -> None:
    """A module opens with its rules."""
    found = [shown(p) for p in python_files() if text_of(p).strip() and not ast.get_docstring(tree_of(p))]

    assert not found, f"no module docstring: {found}"


def test_every_test_tells_its_story() -> None:
    """Each test function has a docstring of one sentence."""
    found = [
        f"{shown(path)}:{node.lineno} {node.name}"
        for path in python_files()
        if path.name.startswith("test_")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
    ]

    assert not found, "no docstring:\n" + "\n".join(found)


ROOMS = ("dataflow", "runtime", "connectors", "coordinator", "taskmanager", "snapline")
"""The rooms of the product whose names and prose people read; protos/ has generated code."""
LONGEST_LINE = 120
FEWEST_WORDS = 5
"""A docstring with fewer has no subject and verb, and is a riddle without its neighbour (CONTRIBUTING.md)."""


def product_files() -> list[Path]:
    """Python files of the product's rooms."""
    return [path for path in python_files() if path.relative_to(ROOT).parts[0] in ROOMS]


@functools.cache
def docstrings(path: Path) -> list[tuple[int, int, str]]:
    """First line, last line and text of each docstring, those of attributes and constants included."""
    found = []
    for node in ast.walk(tree_of(path)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found.append((value.lineno, value.end_lineno or value.lineno, value.value))
    return found


def test_docstrings_are_sentences() -> None:
    """No docstring of the product has four words or fewer."""
    found = [
        f"{shown(path)}:{first}: {text.strip()}"
        for path in product_files()
        for first, _, text in docstrings(path)
        if len(text.split()) < FEWEST_WORDS
    ]

    assert not found, "say it in a sentence with a subject and a verb, see CONTRIBUTING.md:\n" + "\n".join(found)


RIDDLES = re.compile(r"(It|Its|They|Their|By|Of)\b")
"""What begins so speaks of a neighbour, or has no subject: 191 docstrings did, when this was first counted."""


def test_docstrings_say_what_they_speak_of() -> None:
    """No docstring of the product begins with a pronoun or with a fragment like "By name"."""
    found = [
        f"{shown(path)}:{first}: {text.strip().splitlines()[0]}"
        for path in product_files()
        for first, _, text in docstrings(path)
        if RIDDLES.match(text.strip())
    ]

    assert not found, "name the thing first, see CONTRIBUTING.md:\n" + "\n".join(found)


def is_of_a_doctest(lines: list[str], number: int) -> bool:
    """Whether a line of a docstring is an example or what an example prints, which cannot be broken."""
    while lines[number - 1].strip():
        if lines[number - 1].lstrip().startswith(">>>"):
            return True
        number -= 1
    return False


def test_prose_ends_with_the_column_that_code_ends_with() -> None:
    """Docstrings and comments have lines of at most 120 columns; ruff's E501 would also find long texts in code."""
    found = []
    for path in python_files():
        lines = text_of(path).splitlines()
        prose = {number for first, last, _ in docstrings(path) for number in range(first, last + 1)}
        prose |= {number for number, line in enumerate(lines, 1) if line.lstrip().startswith("#")}
        found += [
            f"{shown(path)}:{number}: {len(lines[number - 1])} columns"
            for number in sorted(prose)
            if len(lines[number - 1]) > LONGEST_LINE and not is_of_a_doctest(lines, number)
        ]

    assert not found, f"break these lines of prose at {LONGEST_LINE} columns:\n" + "\n".join(found)


def test_no_two_public_classes_have_one_name() -> None:
    """A class is found by its name, whatever the room."""
    places: dict[str, list[str]] = {}
    for path in product_files():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{shown(path)}:{node.lineno}")
    found = [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]

    assert not found, "give each its own name:\n" + "\n".join(found)


NAMES_IN_SEVERAL_ROOMS = {
    "__init__.py": "Python's",
    "__main__.py": "Python's",
    "events.py": "what a core takes, beside the core",
    "effects.py": "what a core returns, beside the core",
    "state.py": "the contracts of state, and the public module snapline.state that reads it",
}
"""File names that may occur more than once in the product, and why nobody confuses them."""


def test_no_two_files_have_one_name() -> None:
    """A file is found by its name, whatever the room: an error, an editor's tab or a search says the name alone. A
    simulated twin has the name of what it plays."""
    places: dict[str, list[str]] = {}
    for path in product_files():
        if not path.is_relative_to(ROOT / "snapline/testing/simulated"):
            places.setdefault(path.name, []).append(shown(path))
    found = [
        f"{name}: {', '.join(where)}"
        for name, where in sorted(places.items())
        if len(where) > 1 and name not in NAMES_IN_SEVERAL_ROOMS
    ]

    assert not found, "give each its own name:\n" + "\n".join(found)
