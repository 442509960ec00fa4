"""A few hundred inputs that nobody sends for every reader, and every one that ever found something."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.__main__ import FINDINGS, try_one
from tests.fuzz.targets import TARGETS, Target


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_comes_is_read_or_refused_in_one_way(name: str) -> None:
    """The reader raises its own error and no other."""
    rng = random.Random(name)
    for _ in range(TARGETS[name].inputs):
        data = TARGETS[name].draw(rng)
        assert "" == try_one(TARGETS[name], data), data.hex()


@pytest.mark.parametrize("path", sorted(FINDINGS.glob("*.bin")), ids=lambda path: path.stem)
def test_what_once_was_found_stays_mended(path) -> None:
    """Each file is an input that a reader did not refuse as it should."""
    assert "" == try_one(TARGETS[path.stem.rpartition("-")[0]], path.read_bytes())


def test_a_reader_that_breaks_is_found() -> None:
    """The canary: another error than the reader's own."""
    broken = Target(lambda rng: b"", lambda data: data[0], (ValueError,))

    assert "IndexError" in try_one(broken, b"")
    assert "" == try_one(broken, b"x")
