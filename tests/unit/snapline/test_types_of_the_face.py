"""An editor knows the types of what a job is written with: the figure of `basedpyright --verifytypes`, for public
names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.public_face import public_objects

ROOT = Path(__file__).resolve().parents[3]
LEAST = 0.97
"""What is left are messages of the wire, whose generated types are generic in ways that pyright does not follow."""


@pytest.mark.slow
@pytest.mark.timeout(600)  # a checker of types reads the whole package, on one core, which others may share
def test_types_of_public_names_are_known():
    """Parameters, results and attributes of public classes and functions, counted each; types of other packages are not
    ours."""
    command = [sys.executable, "-m", "basedpyright", "--verifytypes", "snapline", "--ignoreexternal", "--outputjson"]
    place = {**os.environ, "PYTHONPATH": str(ROOT)}  # pyright does not follow the link of an editable install
    done = subprocess.run(command, cwd=ROOT, env=place, capture_output=True, text=True, check=False)
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    public = {f"{value.__module__}.{value.__qualname__}" for _, value in public_objects()}
    known = {
        symbol["name"]: symbol["isTypeKnown"]
        for symbol in symbols
        if symbol["name"] in public or symbol["name"].rpartition(".")[0] in public
    }
    assert len(known) > len(public)
    unknown = sorted(name for name, is_known in known.items() if not is_known)
    assert LEAST <= 1 - len(unknown) / len(known), unknown
