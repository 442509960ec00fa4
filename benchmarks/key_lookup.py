"""How fast a batch's keys become dense slots: the candidates beside each other, in one process and interleaved rounds.

    python -m benchmarks.key_lookup [--keys 100000 1000000] [--types int64 string] [--batch-rows 8192] [--rounds 7]
        [--json]

Every candidate knows all keys before it is measured (filling is reported apart, with the longest batch, which is where
a table grows); then it is asked for batches of random keys. `fold` is the running sum and count after every row that
follows the look-up in keyed_sum. `--warm-up` measures instead what a process pays before its first batch: importing the
kernels with and without numba's cache. One run compares candidates; two runs on a busy machine do not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numba
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.cluster import versions
from snapline.dataflow.api.state import RunningAggregateDescriptor
from snapline.taskmanager.state.aggregate_column import AggregateColumn
from snapline.taskmanager.state.index.key_index import KeyIndex

Slots = np.ndarray[Any, np.dtype[np.int32]]
_ROUND_ROWS = 400_000
"""A candidate gets about this many rows per round, less if it is slow."""
_ROUND_SECONDS = 1.0
_KERNEL_MODULES = ("snapline.dataflow.columnar.key_partition", "snapline.taskmanager.state.keyed_backend")


class Candidate(ABC):
    """Keys to dense slots, new keys included."""

    name: ClassVar[str]
    types: ClassVar[tuple[str, ...]] = ("int64", "string")

    def __init__(self, data_type: pa.DataType) -> None:
        self.data_type = data_type

    @abstractmethod
    def slots(self, column: pa.Array) -> Slots:
        """Return one slot for each row."""


class SnaplineIndex(Candidate):
    """The index that Snapline uses."""

    name = "KeyIndex"

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.index = KeyIndex([pa.field("k", data_type)])

    def slots(self, column: pa.Array) -> Slots:
        return self.index.lookup_or_insert([column])


@numba.njit(nogil=True)
def _typed_dict_slots(table: Any, keys: Any, slots: Any) -> None:
    for row in range(keys.shape[0]):
        slot = table.get(keys[row], -1)
        if slot < 0:
            slot = len(table)
            table[keys[row]] = slot
        slots[row] = slot


class TypedDict(Candidate):
    """A dictionary of numba's own, for comparison."""

    name = "numba typed dict"
    types = ("int64",)

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.table = numba.typed.Dict.empty(numba.int64, numba.int64)
        self.slots(pa.array([], pa.int64()))  # compile now, not in the first batch that is measured

    def slots(self, column: pa.Array) -> Slots:
        slots = np.empty(len(column), np.int32)
        _typed_dict_slots(self.table, column.to_numpy(), slots)
        return slots


class PythonDict(Candidate):
    """A dictionary and a loop: one record at a time, as Flink does it."""

    name = "dict"

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.table: dict[Any, int] = {}

    def slots(self, column: pa.Array) -> Slots:
        table = self.table
        return np.array([table.setdefault(key, len(table)) for key in column.to_pylist()], np.int32)


class DictionaryEncode(Candidate):
    """pyarrow finds the distinct keys of the batch, a dictionary knows their slots."""

    name = "arrow dictionary + dict"

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.table: dict[Any, int] = {}

    def slots(self, column: pa.Array) -> Slots:
        table = self.table
        encoded = column.dictionary_encode()
        known = [table.setdefault(key, len(table)) for key in encoded.dictionary.to_pylist()]
        return np.array(known, np.int32)[encoded.indices.to_numpy()]


class SortedTable(Candidate):
    """All keys in a sorted array, found by binary search; new ones are merged in."""

    name = "numpy searchsorted"
    types = ("int64",)

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.keys = np.zeros(0, np.int64)
        self.by_rank = np.zeros(0, np.int32)

    def slots(self, column: pa.Array) -> Slots:
        wanted = column.to_numpy()
        ranks = np.searchsorted(self.keys, wanted)
        missing = ranks == len(self.keys)
        missing[~missing] = self.keys[ranks[~missing]] != wanted[~missing]
        if missing.any():
            new = np.unique(wanted[missing])
            places = np.searchsorted(self.keys, new)
            self.by_rank = np.insert(self.by_rank, places, np.arange(len(new)) + len(self.keys))
            self.keys = np.insert(self.keys, places, new)
            ranks = np.searchsorted(self.keys, wanted)
        return self.by_rank[ranks]


class ArrowIndexIn(Candidate):
    """pyarrow.compute.index_in over all keys: its hash table is built anew for every batch."""

    name = "arrow index_in"

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.keys = pa.array([], data_type)

    def slots(self, column: pa.Array) -> Slots:
        found = pc.index_in(column, value_set=self.keys)
        if found.null_count:
            self.keys = pa.concat_arrays([self.keys, column.filter(found.is_null()).unique()])
            found = pc.index_in(column, value_set=self.keys)
        return found.to_numpy()


class PolarsJoin(Candidate):
    """polars joins the batch with the table of keys."""

    name = "polars join"

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.table = pl.DataFrame({"k": pl.from_arrow(pa.array([], data_type)), "slot": pl.Series([], dtype=pl.Int32)})

    def slots(self, column: pa.Array) -> Slots:
        batch = pl.DataFrame({"k": pl.from_arrow(column)})
        found = batch.join(self.table, on="k", how="left", maintain_order="left")["slot"]
        if found.null_count():
            new = batch.filter(found.is_null())["k"].unique(maintain_order=True)
            slots = pl.Series(np.arange(len(new), dtype=np.int32) + np.int32(len(self.table)))
            self.table = pl.concat([self.table, pl.DataFrame({"k": new, "slot": slots})])
            found = batch.join(self.table, on="k", how="left", maintain_order="left")["slot"]
        return found.to_numpy()


class PolarsUnique(Candidate):
    """polars numbers the distinct keys of the batch, a dictionary knows their slots."""

    name = "polars rank + dict"

    def __init__(self, data_type: pa.DataType) -> None:
        super().__init__(data_type)
        self.table: dict[Any, int] = {}

    def slots(self, column: pa.Array) -> Slots:
        table = self.table
        keys = pl.Series(pl.from_arrow(column))
        distinct = keys.unique(maintain_order=True)
        known = np.array([table.setdefault(key, len(table)) for key in distinct.to_list()], np.int32)
        places = keys.replace_strict(distinct, pl.Series(np.arange(len(distinct), dtype=np.int32)))
        return known[places.to_numpy()]


CANDIDATES: tuple[type[Candidate], ...] = (
    SnaplineIndex,
    TypedDict,
    PythonDict,
    DictionaryEncode,
    SortedTable,
    ArrowIndexIn,
    PolarsJoin,
    PolarsUnique,
)


def column_of(numbers: np.ndarray[Any, np.dtype[np.int64]], type_name: str) -> pa.Array:
    """Keys as a column: scattered integers, or strings of 10 to 17 bytes."""
    if type_name == "int64":
        return pa.array(numbers * 2654435761)
    return pa.array(np.char.add("customer-", numbers.astype(str)))


class Measured:
    """One candidate with its samples."""

    def __init__(self, candidate: Candidate, keys: int, type_name: str, batch_rows: int) -> None:
        self.candidate = candidate
        self.samples: list[float] = []
        longest = total = 0.0
        rows = max(batch_rows, keys // 50)
        for first in range(0, keys, rows):
            column = column_of(np.arange(first, min(keys, first + rows)), type_name)
            seconds = _timed(lambda column=column: candidate.slots(column))  # type: ignore[misc]
            total, longest = total + seconds, max(longest, seconds)
        self.fill_ms, self.longest_ms = total * 1e3, longest * 1e3

    def round(self, batches: list[pa.Array]) -> None:
        """Rows per second over as many of the batches as fit into the time."""
        rows = 0
        begin = time.perf_counter()
        for column in batches:
            self.candidate.slots(column)
            rows += len(column)
            if time.perf_counter() - begin > _ROUND_SECONDS:
                break
        self.samples.append(rows / (time.perf_counter() - begin))


def _timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def compare(
    keys: int, type_name: str, batch_rows: int, rounds: int, kinds: Sequence[type[Candidate]]
) -> dict[str, Any]:
    """The candidates (the first is KeyIndex) for one type of key and one number of keys."""
    data_type = pa.int64() if type_name == "int64" else pa.string()
    generator = np.random.default_rng(keys)
    count = max(4, _ROUND_ROWS // batch_rows)
    batches = [column_of(generator.integers(0, keys, batch_rows), type_name) for _ in range(count)]
    measured = [Measured(kind(data_type), keys, type_name, batch_rows) for kind in kinds if type_name in kind.types]
    fold = Fold(measured[0].candidate, batches, keys)
    for _ in range(rounds):
        for each in measured:
            each.round(batches)
        fold.round()
    results = {each.candidate.name: _summary(each.samples) for each in measured}
    base = results[SnaplineIndex.name]["median"]
    for each in measured:
        results[each.candidate.name] |= {
            "ratio": results[each.candidate.name]["median"] / base,
            "fill_ms": each.fill_ms,
            "longest_fill_batch_ms": each.longest_ms,
        }
    return {"candidates": results, "fold": _summary(fold.samples)}


class Fold:
    """The running sum and count over slots that are known."""

    def __init__(self, candidate: Candidate, batches: list[pa.Array], keys: int) -> None:
        self.slots = [candidate.slots(column) for column in batches]
        self.values = np.arange(len(batches[0]), dtype=np.int64)
        self.column = AggregateColumn(RunningAggregateDescriptor("total", pa.int64(), ("sum",)), keys)
        self.samples: list[float] = []

    def round(self) -> None:
        begin = time.perf_counter()
        for slots in self.slots:
            self.column.fold(slots, self.values)
        self.samples.append(len(self.slots) * len(self.values) / (time.perf_counter() - begin))


def _summary(samples: list[float]) -> dict[str, float]:
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples)}


def warm_up() -> dict[str, float]:
    """Seconds until the kernels are there: compiled, loaded from the cache, and the libraries alone."""
    modules = "; ".join(f"import {name}" for name in _KERNEL_MODULES)
    program = f"import time, numba, pyarrow.compute, numpy; b = time.perf_counter(); {modules}; print(time.perf_counter() - b)"
    libraries = "import time; b = time.perf_counter(); import numba; print(time.perf_counter() - b)"
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        return {
            "compile_s": _in_process(program, environment),
            "load_s": min(_in_process(program, environment) for _ in range(3)),
            "import_numba_s": min(_in_process(libraries, environment) for _ in range(3)),
        }


def _in_process(program: str, environment: dict[str, str]) -> float:
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print what it measured."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000])
    cli.add_argument("--types", nargs="+", choices=["int64", "string"], default=["int64", "string"])
    cli.add_argument("--batch-rows", type=int, default=8192)
    cli.add_argument("--rounds", type=int, default=7)
    cli.add_argument("--only", nargs="*", default=[kind.name for kind in CANDIDATES], help="candidates beside KeyIndex")
    cli.add_argument("--warm-up", action="store_true", help="measure the start of a process instead")
    cli.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = cli.parse_args(arguments)
    about = {**versions(), "numba": numba.__version__, "numpy": np.__version__, "polars": pl.__version__}
    if options.warm_up:
        figures = warm_up()
        for name, seconds in figures.items():
            print(f"{name:<16} {seconds:.2f}")
        _print_json({"warm_up": figures, "versions": about}, options)
        return 0
    print(f"{platform.platform()}; {', '.join(f'{name} {value}' for name, value in about.items())}")
    results = {}
    kinds = [kind for kind in CANDIDATES if kind is SnaplineIndex or kind.name in options.only]
    for type_name in options.types:
        for keys in options.keys:
            found = compare(keys, type_name, options.batch_rows, options.rounds, kinds)
            results[f"{type_name}/{keys}"] = found
            print(
                f"\n{type_name}, {keys:,} keys, batches of {options.batch_rows:,}: M rows/s, median (lowest to highest)"
            )
            for name, each in found["candidates"].items():
                print(
                    f"  {name:<24} {each['median'] / 1e6:8.2f} ({each['min'] / 1e6:.2f} to {each['max'] / 1e6:.2f})"
                    f"  x {each['ratio']:.3f}   filling {each['fill_ms']:,.0f} ms, longest batch {each['longest_fill_batch_ms']:.1f} ms"
                )
            fold = found["fold"]
            print(
                f"  {'then sum and count':<24} {fold['median'] / 1e6:8.2f} ({fold['min'] / 1e6:.2f} to {fold['max'] / 1e6:.2f})"
            )
    _print_json({"batch_rows": options.batch_rows, "results": results, "versions": about}, options)
    return 0


def _print_json(figures: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    sys.exit(main())
