"""Functions over partitions that go on in the middle, without Spark: every kill point, both shapes, wrong use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner

import snapline as sl
from snapline.cli import cli
from snapline.dataflow.config import ConfigurationError
from snapline.embed import partition_run
from snapline.embed.input_digest import InputDigest
from snapline.embed.partition_log import PartitionLog, ResumableError
from snapline.runtime.storage.storage_port import StorageError


class KilledError(BaseException):
    """What stands for signal 9: no code of the function or of ours runs after it."""


class RunningSum(sl.ResumableFunction):
    """Adds up what it has seen, and dies where the test says."""

    def __init__(self, die_after: int | None = None) -> None:
        self.total = 0
        self.processed = 0
        self.die_after = die_after

    def process(self, item: pa.RecordBatch) -> pa.RecordBatch:
        sums = []
        for value in item["x"].to_pylist():
            if self.processed == self.die_after:
                raise KilledError
            self.processed += 1
            self.total += value
            sums.append(self.total)
        return pa.RecordBatch.from_pydict({"sum": pa.array(sums, pa.int64())})

    def snapshot(self) -> Any:
        return {"total": self.total}

    def restore(self, state: Any) -> None:
        self.total = state["total"]


def batches(rows: int = 2_000, size: int = 300, first: int = 0) -> Iterator[pa.RecordBatch]:
    """Numbers in batches."""
    for start in range(first, rows, size):
        yield pa.RecordBatch.from_pydict({"x": list(range(start, min(start + size, rows)))})


def sums(outputs: Iterator[pa.RecordBatch]) -> list[int]:
    """The values that Spark would get."""
    return [value for batch in outputs for value in batch["sum"].to_pylist()]


EXPECTED = [n * (n + 1) // 2 for n in range(2_000)]


def wrapped(function: Any, tmp_path: Path, **more: Any) -> sl.Resumable:
    """With a checkpoint after every piece."""
    return sl.resumable(function, uid="sums", directory=str(tmp_path), interval_ms=0, **more)


@pytest.mark.parametrize("kills", [[0], [1], [700, 1], [1999], [500, 500, 500], [256, 512]])
def test_goes_on_after_each_kill(tmp_path: Path, kills: list[int]) -> None:
    """Output and state are those of a run without kills; what is done is not done again."""
    work = 0
    for kill in kills:
        function = RunningSum(kill)
        got: list[int] = []
        with pytest.raises(KilledError):
            got += sums(wrapped(function, tmp_path)(batches()))
        work += function.processed
    last = RunningSum()
    assert sums(wrapped(last, tmp_path)(batches(size=77))) == EXPECTED
    assert work + last.processed <= 2_000 + len(kills) * 300
    again = RunningSum()
    assert sums(wrapped(again, tmp_path)(batches())) == EXPECTED
    assert again.processed == 0


def test_a_plain_generator_goes_on(tmp_path: Path) -> None:
    """Rows of Python objects, as of an RDD; a generator has no state of its own."""
    seen: list[Any] = []

    def double(rows: Iterator[Any], die_at: int | None = None) -> Iterator[Any]:
        for row in rows:
            if row[0] == die_at:
                raise KilledError
            seen.append(row)
            yield (row[0] * 2, {"of": row[1]})

    rows = [(n, f"r{n}") for n in range(50)]
    with pytest.raises(KilledError):
        list(wrapped(lambda items: double(items, 30), tmp_path)(iter(rows)))
    assert list(wrapped(double, tmp_path)(iter(rows))) == [(n * 2, {"of": f"r{n}"}) for n in range(50)]
    assert len(seen) <= 81


def test_other_input_is_found_out(tmp_path: Path) -> None:
    """Other values, another order, fewer and more rows: one line, and clear() begins anew."""
    with pytest.raises(KilledError):
        list(wrapped(RunningSum(1_500), tmp_path)(batches()))
    for others in (batches(first=1), batches(rows=100), iter(list(batches())[::-1])):
        with pytest.raises(sl.ResumableError, match=r"sums: partition 0: its first [\d,]+ rows are not those") as error:
            list(wrapped(RunningSum(), tmp_path)(others))
        assert "\n" not in str(error.value)
    assert sums(wrapped(RunningSum(), tmp_path)(batches())) == EXPECTED
    with pytest.raises(sl.ResumableError, match="its first 2,000 rows"):
        list(wrapped(RunningSum(), tmp_path)(batches(rows=2_001)))
    wrapped(RunningSum(), tmp_path).clear()
    assert len(sums(wrapped(RunningSum(), tmp_path)(batches(rows=2_001)))) == 2_001


def test_two_attempts_at_once(tmp_path: Path) -> None:
    """A speculative copy, or an executor that was lost and still runs, disturbs neither the other nor what follows."""
    one = wrapped(RunningSum(), tmp_path)(batches())
    first = next(one)
    two = wrapped(RunningSum(), tmp_path)(batches())
    halfway = [next(two) for _ in range(3)]
    assert sums(iter([first, *one])) == EXPECTED
    assert sums(iter([*halfway, *two])) == EXPECTED
    assert sums(wrapped(RunningSum(), tmp_path)(batches())) == EXPECTED


def test_states_and_rows_that_cannot_be_kept(tmp_path: Path) -> None:
    """Each in one line that names function and partition."""

    class Broken(RunningSum):
        def snapshot(self) -> Any:
            return {1: "a number as a name"}

    with pytest.raises(
        sl.ResumableError, match=r"sums: partition 0: snapshot\(\) returned dict that cannot be restored"
    ):
        list(wrapped(Broken(), tmp_path)(batches()))

    class Other(RunningSum):
        def restore(self, state: Any) -> None:
            self.total = state["sum"]

    with pytest.raises(KilledError):
        list(wrapped(RunningSum(1_500), tmp_path)(batches()))
    with pytest.raises(
        sl.ResumableError, match=r"restore\(\) cannot take the state of its checkpoint: KeyError: 'sum'"
    ):
        list(wrapped(Other(), tmp_path)(batches()))
    with pytest.raises(sl.ResumableError, match="a row holds an object of pathlib"):
        list(wrapped(lambda rows: (Path(row) for row in rows), tmp_path / "b")(iter(["a"])))
    with pytest.raises(sl.ResumableError, match="has ended before its input"):
        list(wrapped(lambda rows: [next(rows)], tmp_path / "c")(iter([1, 2])))


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    """Before any job of Spark begins."""
    for function, uid, directory, said in (
        (3, "u", "d", "give a ResumableFunction or a generator"),
        (RunningSum(), "", "d", "give a name"),
        (RunningSum(), "a/b", "d", "give a name"),
        (RunningSum(), "u", None, "give directory=... or set execution.checkpointing.dir".split(" or")[0]),
    ):
        with pytest.raises(sl.ConfigurationError, match=said.replace("...", r"\.\.\.")):
            sl.resumable(function, uid=uid, directory=directory)  # type: ignore[arg-type]
    with pytest.raises(sl.ResumableError, match="is no checkpoint of a partition"):
        place = tmp_path / "resumable-sums" / "p-000000"
        place.mkdir(parents=True)
        (place / f"chk-{5:015d}-{'0' * 32}.json").write_text("{}")
        list(wrapped(RunningSum(), tmp_path)(batches()))


def test_an_empty_partition(tmp_path: Path) -> None:
    """It is finished at once, twice."""
    for _ in range(2):
        assert list(wrapped(RunningSum(), tmp_path)(iter([]))) == []
    assert list(wrapped(RunningSum(), tmp_path)(batches(rows=0))) == []


def test_progress_while_it_runs(tmp_path: Path) -> None:
    """Rows, rate and remaining time, from the program and from the command."""
    function = wrapped(RunningSum(), tmp_path, rows_per_partition=[2_000])
    running = function(batches())
    while not function.progress():
        next(running)
    [now] = function.progress()
    assert 0 < now.rows < 2_000
    assert not now.is_finished
    assert now.rows_per_second > 0
    assert now.remaining_s is not None
    assert now.remaining_s > 0
    list(running)
    assert [(2_000, 2_000, True, 0.0)] == [
        (each.rows, each.rows_out, each.is_finished, each.remaining_s) for each in function.progress()
    ]
    shown = CliRunner().invoke(cli, ["resumable", str(tmp_path / "resumable-sums"), "--output", "json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)[0]["rows"] == 2_000
    table = CliRunner().invoke(cli, ["resumable", str(tmp_path / "resumable-sums")])
    assert "2,000" in table.output
    nothing = CliRunner().invoke(cli, ["resumable", str(tmp_path / "nowhere")])
    assert nothing.exit_code == 1
    assert "no partition has taken a checkpoint" in nothing.output


def test_a_digest_does_not_depend_on_batches() -> None:
    """For every kind of column, cut anywhere; and it differs for each small change."""
    table = pa.table(
        {
            "i": pa.array([1, None, 3, 4], pa.int32()),
            "b": pa.array([True, False, None, True]),
            "s": pa.array(["a", "", None, "bc"]),
            "l": pa.array([[1], [], None, [2, None]], pa.list_(pa.int64())),
            "m": pa.array([[("k", 1)], None, [], [("a", None), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
            "t": pa.array([{"x": 1, "y": "z"}, None, {"x": None, "y": ""}, {"x": 2, "y": "w"}]),
            "d": pa.array(["u", "v", None, "u"]).dictionary_encode(),
            "n": pa.nulls(4),
            "f": pa.array([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.int8(), 2)),
        }
    )

    def digest(source: pa.Table, size: int) -> str:
        taken = InputDigest()
        for batch in source.to_batches(max_chunksize=size):
            taken.add_batch(batch)
        return taken.hexdigest()

    wanted = digest(table, 4)
    assert [digest(table, size) for size in (1, 2, 3)] == [wanted] * 3
    assert digest(table.take([0, 1, 3, 2]), 2) != wanted
    for name in ("i", "b", "s", "l", "m", "t", "d", "f"):
        changed = table.set_column(table.schema.get_field_index(name), name, table[name].take([1, 0, 2, 3]))
        assert digest(changed, 2) != wanted, name


class Highest(sl.ResumableFunction):
    """Keeps numbers that need not be there yet."""

    def __init__(self) -> None:
        self.seen = {"highest": float("nan"), "last": [float("nan"), 1.5]}
        self.restored: Any = None

    def process(self, item: pa.RecordBatch) -> pa.RecordBatch:
        return item

    def snapshot(self) -> Any:
        return self.seen

    def restore(self, state: Any) -> None:
        self.restored = state


def test_a_state_with_nan_is_kept(tmp_path: Path) -> None:
    """A number that is not equal to itself was refused, with a line that asked for numbers."""
    list(islice(wrapped(Highest(), tmp_path)(batches()), 2))
    second = Highest()
    list(wrapped(second, tmp_path)(batches()))

    assert repr(second.seen) == repr(second.restored)


class Answers(sl.ResumableFunction):
    """Returns for each row what it was told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def process(self, item: Any) -> Any:
        return self.answer

    def snapshot(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("answer", [5, "text", b"bytes", {"x": 1}, pa.array([1]), pl.DataFrame({"x": [1]})])
def test_what_is_no_batch_and_no_iterable_of_rows_is_refused_by_its_type(tmp_path: Path, answer: Any) -> None:
    """The names of a dict's columns, and the characters of a text, were taken for rows without a word."""
    name = re.escape(f"the function returned a {type(answer).__module__}.{type(answer).__qualname__}: let it return")
    with pytest.raises(ResumableError, match=name):
        list(wrapped(Answers(answer), tmp_path)(iter([1])))


def test_a_table_is_its_batches(tmp_path: Path) -> None:
    """Its columns were taken for rows."""
    assert sums(wrapped(Answers(pa.table({"sum": [1, 2]})), tmp_path)(iter([1]))) == [1, 2]


def test_a_class_and_a_uid_that_is_no_text_are_refused() -> None:
    """The first was called in the task of Spark, the second was an error of Python's."""
    with pytest.raises(ConfigurationError, match=re.escape("it is a class: hand over RunningSum(...)")):
        sl.resumable(RunningSum, uid="sums")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="give a name without slashes"):
        sl.resumable(RunningSum(), uid=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"interval_ms": "10 s"}, "interval_ms is whole milliseconds, got '10 s': write 10000"),
        ({"interval_ms": -1}, "interval_ms must not be negative, got -1 ms"),
        ({"rows_per_partition": "500"}, "rows_per_partition must be a whole number, at least 0, got '500'"),
        ({"rows_per_partition": [5, 2.5]}, r"rows_per_partition must be a whole number, at least 0, got 2\.5"),
    ],
)
def test_numbers_that_are_none_are_refused(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    """Some were errors of Python's, and a text failed where the tasks of Spark worked out what was left."""
    with pytest.raises(sl.InvalidArgument, match=r"resumable\('sums'\): " + said):
        sl.resumable(RunningSum(), uid="sums", directory=str(tmp_path), **wrong)


def test_output_that_cannot_be_written_early_stops_no_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint that cannot be written is missed, but the task failed where so much output came before it that some
    of it was to be written down beforehand."""
    append, tries = PartitionLog.append, 0

    def fail_twice(log: PartitionLog, items: list[Any]) -> str:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise StorageError("503 Slow Down")
        return append(log, items)

    monkeypatch.setattr(PartitionLog, "append", fail_twice)
    monkeypatch.setattr(partition_run, "PENDING_ROWS_MAX", 10)

    def same(rows: Iterator[int]) -> Iterator[int]:
        yield from rows

    run = sl.resumable(same, uid="same", directory=str(tmp_path), interval_ms=1_000_000)
    assert list(run(iter(range(100)))) == list(range(100))
    assert capsys.readouterr().err.count("same: partition 0: no output is written, the work goes on: 503 Slow") == 2
    assert tries == 9  # at 10 and 20 rows in vain, then at 40 and at each 10 more
    assert list(run(iter(range(100)))) == list(range(100))
