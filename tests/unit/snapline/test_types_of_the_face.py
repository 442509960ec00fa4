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


PROGRAM = """
from collections.abc import Iterator
from typing import TypedDict

import pyarrow as pa

import snapline as sl

FACTORS = sl.MapStateDescriptor("factors", pa.string(), pa.int64())


class Order(TypedDict):
    shop: str
    cents: int


class Multiplied(sl.KeyedBroadcastProcessFunction):
    def process_element(self, row: sl.Row, context: sl.BroadcastContext) -> Iterator[Order]:
        yield {"shop": row["shop"], "cents": row["cents"] * context.get_broadcast_state(FACTORS).get(row["shop"], 1)}

    def process_broadcast_element(self, row: sl.Row, context: sl.BroadcastContext) -> None:
        context.get_broadcast_state(FACTORS)[row["shop"]] = row["factor"]


class Waiting(sl.KeyedProcessFunction):
    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[Order]:
        yield {"shop": row["shop"], "cents": row["cents"]}

    def on_timer(self, timestamp_ms: int, context: sl.ProcessContext) -> Iterator[Order]:
        yield {"shop": context.current_key, "cents": 0}


class Both(sl.KeyedCoProcessFunction):
    def process_element1(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[Order]:
        yield {"shop": row["shop"], "cents": row["cents"]}

    def process_element2(self, row: sl.Row, context: sl.ProcessContext) -> None:
        return None


env = sl.StreamExecutionEnvironment.get_execution_environment()
orders = env.from_collection([{"shop": "a", "cents": 1}], uid="orders").key_by("shop")
rules = env.from_collection([{"shop": "a", "factor": 2}], uid="rules")
orders.connect(rules.broadcast_state(FACTORS)).process(Multiplied(), uid="multiplied")
orders.connect(rules.key_by("shop")).process(Both(), uid="both")
orders.process(Waiting(), uid="waiting").print()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_program_with_types_passes_a_strict_checker(tmp_path: Path) -> None:
    """`connect` said one of two kinds of streams, of which each call refused the other; and rows that are a TypedDict
    could be emitted by one method of a function and not by the next."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--follow-imports=silent"]
    place = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path), str(tmp_path / "program.py")],
        cwd=tmp_path, env=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    # What is generated for protobuf are stubs, in which mypy finds fault even where it follows imports in silence.
    complaints = [line for line in done.stdout.splitlines() if "_pb2.pyi:" not in line]
    assert len(complaints) == 1 and "checked 1 source file" in complaints[0], done.stdout + done.stderr
