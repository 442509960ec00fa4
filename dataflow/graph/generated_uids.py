"""Uids of operators that have been given none, and what is said of them.

Decides that a generated uid follows from what the operator is called and reads, all the way up to its sources, and from
nothing else: an unchanged program gets the same ones each time, and so does one that has grown elsewhere. Mirrors
Flink's StreamGraphHasherV2 and `pipeline.auto-generate-uids`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

DIGEST_BYTES = 6


class GeneratedUids:
    """The generated uids of one job, whose operators come in topological order."""

    def __init__(self) -> None:
        """Begin without any uid that was given or generated."""
        self._drawn: Counter[tuple[str, ...]] = Counter()

    def draw(self, name: str, inputs: Sequence[str]) -> str:
        """For an operator of this name that reads operators of these uids, in the order of its inputs."""
        like = (name, *inputs)
        number = self._drawn[like]
        self._drawn[like] += 1
        text = "\n".join((*like, str(number)))
        return f"{name}-{hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()}"


def warning_of(operators: Sequence[tuple[str, str]]) -> str:
    """One warning for all operators with state whose uid was generated, as (name, uid)."""
    named = ", ".join(f"{name!r} ({uid})" for name, uid in operators)
    keep = "1 operator keeps" if len(operators) == 1 else f"{len(operators)} operators keep"
    return (
        f"{keep} state under a generated uid: {named}. Such a uid is the same as long as the program is; once an operator or anything before it "
        "is renamed, added or removed, a restart from a savepoint does not find its state. Add uid='...' to each "
        "(pipeline.auto-generate-uids = false makes this an error)"
    )
