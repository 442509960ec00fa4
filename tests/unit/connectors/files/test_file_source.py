"""Files as a source: which files, in which order, how much is remembered, positions inside files, wrong input."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource, CollectSink
from snapline.connectors.files import file_discovery
from snapline.connectors.files.file_discovery import FileEnumerator, SeenFiles
from snapline.connectors.files.file_sink import FileSink
from snapline.connectors.files.file_source import FileSource
from snapline.connectors.formats import AvroFormat, CsvFormat, JsonFormat, OrcFormat, ParquetFormat, RawFormat
from snapline.connectors.formats.file_format import LinesFormat, file_format_of
from snapline.dataflow.api.connector_api import InputStatus, SourceReader, SourceSplit
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "n", "type": "long"}, {"name": "word", "type": ["null", "string"]}],
}
WRONG: Any = "wrong"
FORMATS = {
    "parquet": ParquetFormat(row_group_rows=40),
    "orc": OrcFormat(),
    "avro": file_format_of(AvroFormat(AVRO), None),
    "avro-deflate": file_format_of(AvroFormat(AVRO), "gzip"),
    "json": LinesFormat(JsonFormat(SCHEMA)),
    "json-gzip": LinesFormat(JsonFormat(SCHEMA), compression="gzip"),
    "csv": LinesFormat(CsvFormat(SCHEMA)),
    "csv-header-zstd": LinesFormat(CsvFormat(SCHEMA, header=True), compression="zstd"),
}


def rows(start: int, count: int) -> pa.Table:
    """Numbers and words, some of which have line breaks and quotes in them."""
    words = [f'w"{n}\nx,' if n % 7 == 3 else f"w{n}" for n in range(start, start + count)]
    return pa.table({"n": range(start, start + count), "word": words}, SCHEMA)


def write(path: Path, form: Any, start: int, count: int, mtime: int | None = None) -> Path:
    """Write a file of so many rows from this number on."""
    with path.open("wb") as stream:
        encoder = form.open(stream, SCHEMA)
        encoder.write(rows(start, count))
        encoder.close()
    if mtime is not None:
        os.utime(path, (mtime, mtime))
    return path


def found_by(source: FileSource, state: dict[str, Any] | None = None) -> tuple[list[SourceSplit], dict[str, Any]]:
    """What an enumerator finds from a state on, until it has to wait."""
    enumerator = FileEnumerator(source)
    found: list[SourceSplit] = []
    while True:
        discovery = enumerator.discover(state or {})
        found += discovery.splits
        state = discovery.state
        if discovery.again_after_ms or discovery.finished:
            return found, state


def names(splits: list[SourceSplit]) -> list[str]:
    """Of the splits' files."""
    return [Path(split.description["path"]).name for split in splits]


def open_reader(source: FileSource, splits: Any, place: Any = None) -> SourceReader:
    reader = source.create_reader(place or Place())
    reader.add_splits(splits)
    return reader


def drain(reader: SourceReader, polls: int = 10**6) -> list[dict[str, Any]]:
    """Rows of so many polls, or of all."""
    found: list[dict[str, Any]] = []
    for _ in range(polls):
        polled = reader.poll_next(0)
        if polled.batch is not None:
            found += polled.batch.to_pylist()
        if polled.status is InputStatus.NOTHING_AVAILABLE:
            break
    return found


def read(source: FileSource) -> list[dict[str, Any]]:
    """All rows of the files that are there."""
    source.enumerate_splits()
    return drain(open_reader(source, found_by(source)[0]))


# --- formats and positions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_goes_on_in_the_middle_of_a_file(tmp_path: Path, name: str) -> None:
    """After any number of polls a reader that is restored with other batches reads the rest, and nothing twice."""
    form = FORMATS[name]
    write(tmp_path / "a", form, 0, 100)
    write(tmp_path / "b", form, 100, 3)
    given = {"parquet": "parquet", "orc": "orc"}.get(name, form)
    source = FileSource(tmp_path, given, batch_rows=17, order="path")
    source.enumerate_splits()
    splits = [SourceSplit(s.split_id, s.description) for s in found_by(source)[0]]
    for polls in range(12):
        first = open_reader(source, splits)
        before = drain(first, polls)
        held = first.snapshot_splits(1)
        drain(first, 1)  # lost
        first.close()
        again: FileSource = pickle.loads(pickle.dumps(FileSource(tmp_path, given, batch_rows=30, order="path")))
        after = drain(open_reader(again, held))
        assert rows(0, 103).to_pylist() == before + after


@pytest.mark.parametrize("name", ["parquet", "orc", "avro", "json-gzip", "csv-header-zstd"])
def test_columns_are_those_of_the_first_file_when_nobody_says_them(tmp_path: Path, name: str) -> None:
    """Of every format that has a name; a compressed file is known by its beginning."""
    write(tmp_path / "a", FORMATS[name], 0, 10)
    source = FileSource(tmp_path, name.split("-")[0])
    assert SCHEMA == source.schema()
    assert rows(0, 10).to_pylist() == read(source)


def test_a_chosen_column_and_a_cast(tmp_path: Path) -> None:
    """Columns come in the order asked for, and files may have a type that fits the source's."""
    pq.write_table(pa.table({"n": pa.array([1], pa.int32()), "word": ["a"]}), tmp_path / "a.parquet")
    schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
    assert [{"word": "a", "n": 1}] == read(FileSource(tmp_path, schema=schema))
    assert [{"n": 1}] == read(FileSource(tmp_path, columns=["n"]))


def test_columns_are_found_where_the_beginning_of_a_file_ends_within_quotes(tmp_path: Path) -> None:
    """A text of many lines was cut behind one of them, which then was a row with too few columns."""
    text = "\n".join(["word"] * (1 << 19))
    (tmp_path / "a.csv").write_text(f'word,n\na,1\n"{text}",2\n')

    assert [("word", pa.string()), ("n", pa.int64())] == [
        (field.name, field.type) for field in FileSource(tmp_path, "csv").schema()
    ]


def test_what_is_empty_inside_of_the_first_object_may_be_there_later(tmp_path: Path) -> None:
    """Lists without elements, fields that are null and times without a fraction had types that no later file fits."""
    for name, line in (
        ("a", '{"l": [], "o": {"x": null, "t": "2026-01-01T00:00:00"}}'),
        ("b", '{"l": ["q"], "o": {"x": "y", "t": "2026-01-01T00:00:00.5"}}'),
    ):
        (tmp_path / f"{name}.json").write_text(line + "\n")
    source = FileSource(tmp_path, "json", order="path")
    source.schema()
    reader = source.create_reader(Place())
    reader.add_splits(found_by(source)[0])

    batches = [batch for _ in range(4) if (batch := reader.poll_next(0).batch) is not None]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [([], None, 0), (["q"], "y", 500_000)] == [
        (row["l"], row["o"]["x"], row["o"]["t"].microsecond) for row in rows
    ]


def test_a_header_says_the_order_of_columns(tmp_path: Path) -> None:
    """Files of one source may have other orders and further columns; empty lines and carriage returns are no rows."""
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfn,word\r\n1,a\r\n\r\n2,b")
    (tmp_path / "b.csv").write_text("more,word,n\nx,c,3\n")
    source = FileSource(tmp_path, "csv", order="path")
    expected = [{"n": 1, "word": "a"}, {"n": 2, "word": "b"}, {"n": 3, "word": "c"}]
    assert expected == read(source)
    assert expected == read(FileSource(tmp_path, CsvFormat(SCHEMA, header=True), order="path"))


def test_an_empty_line_is_no_row_of_a_file_with_several_columns(tmp_path: Path) -> None:
    """Also where one of them is read: such a line, as at the end of a file, was a row of nulls then."""
    (tmp_path / "a.csv").write_text("n,word\n1,a\n\n2,b\n\n")
    assert [{"n": 1}, {"n": 2}] == read(FileSource(tmp_path, "csv", schema=pa.schema([("n", pa.int64())])))


def test_gzip_that_was_put_together_and_lines_of_text(tmp_path: Path) -> None:
    """A file of several gzip members is read whole; raw lines keep empty ones."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a\n\n") + gzip.compress(b"b"))
    assert [{"line": "a"}, {"line": ""}, {"line": "b"}] == read(FileSource(tmp_path, RawFormat("line", text=True)))


def test_lines_longer_than_a_block_go_on_where_they_end(tmp_path: Path) -> None:
    """A line that spans several blocks is one row, and the position behind it is right."""
    lines = ["a" * 3_000_000, "b", "c" * 2_000_000, "d"]
    for path, data in (("plain", "\n".join(lines).encode()), ("packed", gzip.compress("\n".join(lines).encode()))):
        (tmp_path / path).mkdir()
        (tmp_path / path / "a").write_bytes(data)
        source = FileSource(tmp_path / path, RawFormat("line", text=True), batch_rows=1)
        splits = found_by(source)[0]
        for polls in range(5):
            first = open_reader(source, splits)
            before = drain(first, polls)
            after = drain(open_reader(source, first.snapshot_splits(1)))
            assert lines == [row["line"] for row in before + after]
            first.close()


def test_what_a_sink_writes_with_headers_can_be_read(tmp_path: Path) -> None:
    """Also where small files were put together: one header stays."""
    form = LinesFormat(CsvFormat(SCHEMA, header=True))
    parts = [write(tmp_path / f"_part{n}", form, n * 5, 5) for n in range(3)]
    with (tmp_path / "all.csv").open("wb") as out:
        opened = [part.open("rb") for part in parts]
        form.merge(opened, out)
        for stream in opened:
            stream.close()
    assert rows(0, 15).to_pylist() == read(FileSource(tmp_path, "csv"))


# --- discovery --------------------------------------------------------------------------------------------------------


def touch(directory: Path, name: str, mtime: int) -> None:
    """Make a file of one line that was changed at this second."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x\n")
    os.utime(path, (mtime, mtime))


def lines_of(path: Any, **options: Any) -> FileSource:
    return FileSource(path, RawFormat("line", text=True), **options)


def test_files_come_in_the_order_of_their_times_or_of_their_paths(tmp_path: Path) -> None:
    """Hidden ones never come, and a glob chooses."""
    for name, mtime in (("c", 1), ("b", 3), ("a", 3), ("d/e", 2), ("_staging/x", 1), (".y", 1)):
        touch(tmp_path, name, mtime)
    assert ["c", "e", "a", "b"] == names(found_by(lines_of(tmp_path))[0])
    assert ["a", "b", "c", "e"] == names(found_by(lines_of(tmp_path, order="path"))[0])
    assert ["e"] == names(found_by(lines_of(f"{tmp_path}/*/*"))[0])
    assert ["c", "a"] == names(found_by(lines_of([tmp_path / "c", f"{tmp_path}/[ac]"]))[0])


def test_a_follower_finds_each_file_once_also_those_that_appear_late(tmp_path: Path) -> None:
    """A file that becomes visible with an earlier time than others is found, and one that is written again is new."""
    source = lines_of(tmp_path, follow=True)
    touch(tmp_path, "a", 100)
    first, state = found_by(source)
    touch(tmp_path, "late", 50)
    touch(tmp_path, "b", 200)
    second, state = found_by(source, state)
    third, state = found_by(source, state)
    touch(tmp_path, "a", 300)
    fourth, state = found_by(source, state)
    assert (["a"], ["late", "b"], [], ["a"]) == (names(first), names(second), names(third), names(fourth))


def test_files_that_are_not_there_where_the_job_runs_are_no_end(tmp_path: Path) -> None:
    """A directory of the driver's alone was an input without rows, and the job had finished well."""
    touch(tmp_path, "a", 100)
    source, patient = lines_of(tmp_path), lines_of(tmp_path, ignore_missing=True)
    for each in (source, patient):
        each.enumerate_splits()
    (tmp_path / "a").unlink()
    with pytest.raises(ConnectorError, match=r"no file matches .* in the cluster, and one did where the job was"):
        found_by(source)
    assert [] == found_by(patient)[0]


def test_a_source_that_ended_follows_when_its_job_goes_on_so(tmp_path: Path) -> None:
    """The snapshot of a job that read what was there is no bound for one that follows."""
    touch(tmp_path, "a", 100)
    first, state = found_by(lines_of(tmp_path))
    touch(tmp_path, "b", 200)
    second, state = found_by(lines_of(tmp_path, follow=True), state)
    assert (["a"], ["b"]) == (names(first), names(second))


def test_memory_is_bounded_and_files_may_be_late_by_what_is_remembered() -> None:
    """Ten thousand files leave no more behind than the last ones; the earliest late file that is found is said."""
    seen, sizes = SeenFiles({}, 100), []
    for n in range(10_000):
        assert seen.is_new((n, "f"))
        seen.add((n, "f"))
        if n % 37 == 0:
            seen = SeenFiles(seen.state(), 100)
            sizes.append(len(str(seen.state())))
    assert max(sizes) < 2 * 100 * 12 + 300
    assert not any(seen.is_new((n, "f")) for n in range(10_000))
    assert all(seen.is_new((n, "late")) for n in range(9_900, 10_000))
    assert not any(seen.is_new((n, "late")) for n in range(9_799))


def test_many_old_files_at_once_are_all_read(tmp_path: Path) -> None:
    """Of files that were copied in with old times, all but some of the first were left out without a word."""
    source = lines_of(tmp_path, follow=True, remember=5)
    for n in range(3):
        touch(tmp_path, f"new{n}", 1000 + n)
    _, state = found_by(source)
    for n in range(40):
        touch(tmp_path, f"old{n:02d}", n)
    late, state = found_by(source, state)
    again, _ = found_by(source, state)
    assert ([f"old{n:02d}" for n in range(40)], []) == (names(late), names(again))


def test_a_file_with_a_time_in_the_future_hides_none_that_come_after_it() -> None:
    """A source that had met one read nothing any more after twice `remember` files."""
    seen = SeenFiles({}, 5)
    seen.add((10**6, "from a wrong clock"))
    for n in range(100):
        assert seen.is_new((n, "f"))
        seen.add((n, "f"))
        seen = SeenFiles(seen.state(), 5)
    assert not any(seen.is_new((n, "f")) for n in range(100))


def test_files_that_all_come_behind_one_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Behind a file with a time in the future each further one made every checkpoint larger, and nobody was told."""
    touch(tmp_path, "of a wrong clock", 10**9)
    enumerator = FileEnumerator(lines_of(tmp_path, follow=True, remember=2))
    state = enumerator.discover({}).state
    for n in range(25):
        touch(tmp_path, f"f{n}", n)
        state = enumerator.discover(state).state
    [said] = [record.getMessage() for record in caplog.records]
    assert str(tmp_path) in said and "20 files have come behind (1000000000000000000, " in said


def test_a_look_that_finds_nothing_leaves_the_state_as_it_is(tmp_path: Path) -> None:
    """What is remembered was written anew each time, also where nothing ever came."""
    touch(tmp_path, "a", 1)
    enumerator = FileEnumerator(lines_of(tmp_path, follow=True))
    state = enumerator.discover({}).state
    assert enumerator.discover(state).state["seen"] is state["seen"]


def test_a_listing_is_handed_out_in_parts_and_a_restore_lists_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits stays small; after any look another enumerator goes on."""
    monkeypatch.setattr(file_discovery, "FILES_AT_ONCE", 3)
    for n in range(10):
        touch(tmp_path, f"f{n}", n)
    source = lines_of(tmp_path, remember=2)
    found: list[SourceSplit] = []
    state: dict[str, Any] = {}
    finished, enumerator, looks = False, FileEnumerator(source), 0
    while not finished:
        discovery = enumerator.discover(state)
        assert len(discovery.splits) <= 3
        found += discovery.splits
        state, finished, looks = discovery.state, discovery.finished, looks + 1
        if looks == 2:
            enumerator = FileEnumerator(source)
            touch(tmp_path, "f99", 99)  # a bounded source reads what was there when it began
    assert [f"f{n}" for n in range(10)] == names(found)


def test_a_store_that_does_not_answer_for_a_moment_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look asks again; after a minute the task fails."""
    touch(tmp_path, "a", 1)
    enumerator = FileEnumerator(lines_of(tmp_path, follow=True))

    def fail(_: Any) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(file_discovery, "list_files", fail)
        assert [] == list(enumerator.discover({}).splits)
        patch.setattr(file_discovery, "GIVE_UP_SECONDS", 0.0)
        with pytest.raises(ConnectorError, match=r"cannot list .*the store is away"):
            enumerator.discover({})
    assert ["a"] == names(list(enumerator.discover({}).splits))


# --- wrong input ------------------------------------------------------------------------------------------------------


def test_bad_lines_fail_with_their_number_or_are_dropped_and_counted(tmp_path: Path) -> None:
    """Lines are counted from one, with the header, empty lines and lines inside quotes."""
    (tmp_path / "a.csv").write_text('n,word\n1,"a\nb"\n\n2,b\nx,c\n3,d\n')
    with pytest.raises(ConnectorError, match=r"line 6 of .*a\.csv is no row: .*on_error='drop'"):
        read(FileSource(tmp_path, "csv", schema=SCHEMA))
    place = Place()
    source = FileSource(tmp_path, "csv", schema=SCHEMA, on_error="drop")
    good = drain(open_reader(source, found_by(source)[0], place))
    assert [1, 2, 3] == [row["n"] for row in good]
    assert 1 == place.metrics.counter("bad_rows").value
    aside = FileSource(tmp_path, "csv", schema=SCHEMA, on_error="side_output")
    polled = open_reader(aside, found_by(aside)[0], place).poll_next(0)
    [bad] = polled.bad_rows
    assert (str(tmp_path / "a.csv"), 6, b"x,c") == (bad.split, bad.position, bad.value)
    assert "x" in bad.error
    assert 2 == place.metrics.counter("bad_rows").value
    (tmp_path / "a.csv").write_text('{"n": 1}\n\n[]\n')
    with pytest.raises(ConnectorError, match=r"line 3 of .*a\.csv is no row: not a JSON object"):
        read(FileSource(tmp_path, "json", schema=SCHEMA))


def begun(tmp_path: Path, **options: Any) -> tuple[Path, SourceReader]:
    """A reader in the middle of a file."""
    path = tmp_path / "a"
    path.write_text("".join(f"{n}\n" for n in range(10)))
    os.utime(path, (100, 100))
    source = lines_of(path, batch_rows=4, **options)
    reader = open_reader(source, found_by(source)[0])
    drain(reader, 1)
    return path, reader


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: path.write_text("0\n"), "it had 20 bytes when it was found, and has 2"),
        (lambda path: os.utime(path, (200, 200)), "it was written again since it was found"),
    ],
)
def test_a_file_that_changes_while_it_is_read_fails_in_one_line(tmp_path: Path, change: Any, why: str) -> None:
    """At its end, and when a restore goes on in its middle."""
    path, reader = begun(tmp_path, follow=True)
    held = reader.snapshot_splits(1)
    change(path)
    for each in (reader, open_reader(lines_of(path, follow=True), held)):
        with pytest.raises(
            ConnectorError, match=f"has changed while it is read: {why}.*rename them when they are whole"
        ):
            drain(each)
        each.close()


def test_a_file_that_changed_before_it_was_begun_is_found_again(tmp_path: Path) -> None:
    """A source that follows reads it in its new form, once; one that does not says so."""
    touch(tmp_path, "a", 100)
    source = lines_of(tmp_path, follow=True)
    first, state = found_by(source)
    (tmp_path / "a").write_text("x\ny\n")
    assert [] == drain(open_reader(source, first))
    assert [{"line": "x"}, {"line": "y"}] == drain(open_reader(source, found_by(source, state)[0]))
    with pytest.raises(ConnectorError, match="has changed while it is read"):
        drain(open_reader(lines_of(tmp_path), first))


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """It fails, unless it was not begun and may be missing."""
    touch(tmp_path, "a", 100)
    source = lines_of(tmp_path)
    splits, _ = found_by(source)
    (tmp_path / "a").unlink()
    with pytest.raises(ConnectorError, match=r"is gone before it was read to its end.*ignore_missing=True"):
        drain(open_reader(source, splits))
    assert [] == drain(open_reader(lines_of(tmp_path, ignore_missing=True), splits))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda at: FileSource(at, "xml"), "unknown format 'xml'; there are parquet, orc, json, csv, avro"),
        (lambda at: FileSource([]), "no path given"),
        (lambda at: FileSource(at, order=WRONG), "order is one of modified, path, not 'wrong'"),
        (lambda at: FileSource(at, on_error=WRONG), "on_error is one of fail, drop, side_output, not 'wrong'"),
        (lambda at: FileSource(at, remember=0), "remember must be at least 1, got 0"),
        (lambda at: FileSource(at, JsonFormat(SCHEMA), schema=SCHEMA), "the format has a schema; leave out schema="),
        (lambda at: FileSource(at, JsonFormat(SCHEMA), columns=["m"]), "no column 'm' in the schema; it has n, word"),
        (lambda at: FileSource(at, columns=["n", "n"]), r"a column is asked for twice in \['n', 'n'\]"),
        (lambda at: FileSource(f"{at}/*.csv", "csv").enumerate_splits(), "no file matches .*with follow=True the job"),
        (lambda at: FileSource(at, "csv", follow=True).enumerate_splits(), "that could say the columns; give schema="),
        (
            lambda at: FileSource(at / "none", "csv", follow=True, schema=SCHEMA).enumerate_splits(),
            "no file or directory",
        ),
    ],
)
def test_wrong_sources_are_refused_in_one_line(tmp_path: Path, make: Any, why: str) -> None:
    """On the driver, before a job starts."""
    with pytest.raises(ConnectorError, match=why):
        make(tmp_path)


@pytest.mark.parametrize("name", ["parquet", "orc", "avro", "json", "csv"])
def test_a_file_of_another_format_is_named(tmp_path: Path, name: str) -> None:
    """When the columns are asked for, and when it is read later."""
    (tmp_path / "a").write_bytes(gzip.compress(b"no such thing\n" * 3)[:-9])
    with pytest.raises(ConnectorError, match=r"/a does not say the columns: .*"):
        FileSource(tmp_path, name).enumerate_splits()
    form = {"avro": AvroFormat(AVRO)}.get(name, name)
    source = FileSource(tmp_path, form, schema=None if name == "avro" else SCHEMA)
    with pytest.raises(ConnectorError, match=r"/a cannot be read as \w+: .*; replace it, or leave it out"):
        read(source)


def test_columns_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """A column that a later file lacks, or has with a type that does not fit."""
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a")
    with pytest.raises(ConnectorError, match="/a has no column 'word', but n; read such files apart"):
        read(FileSource(tmp_path, schema=SCHEMA))
    orc.write_table(pa.table({"n": ["x"]}), tmp_path / "a")
    with pytest.raises(ConnectorError, match=r"column 'n' of .*/a is string, which does not fit int64"):
        read(FileSource(tmp_path, "orc", schema=pa.schema([("n", pa.int64())])))
    (tmp_path / "a").write_text("word\nx\n")
    with pytest.raises(ConnectorError, match="its header has no column 'n', but word"):
        read(FileSource(tmp_path, "csv", schema=SCHEMA))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1, 86_400_000_000], pa.timestamp("us")), pa.date32()),
        (pa.array([1, 2]), pa.bool_()),
        (pa.array([1e300]), pa.float32()),
        (pa.array([86_400_000_001], pa.timestamp("us")), pa.time64("us")),
        (pa.array([None, [1]], pa.list_(pa.timestamp("us"))), pa.list_(pa.date32())),
        (pa.array([None, {"f": 1e300}]), pa.struct([("f", pa.float32())])),
        (pa.array([[(1, 2)]], pa.map_(pa.int64(), pa.int64())), pa.map_(pa.int64(), pa.bool_())),
    ],
    ids=lambda given: str(given.type if isinstance(given, pa.Array) else given),
)
def test_values_that_would_change_do_not_fit(tmp_path: Path, column: pa.Array, kind: pa.DataType) -> None:
    """Where a later file has another type: times became days, two was true, and a large number infinity; inside of
    lists and records, too, and a time lost its day."""
    pq.write_table(pa.table({"v": column}), tmp_path / "a")

    with pytest.raises(ConnectorError, match=r"which does not fit .*: some values of .* are not the same as"):
        read(FileSource(tmp_path, schema=pa.schema([("v", kind)])))


def test_values_that_stay_the_same_are_cast(tmp_path: Path) -> None:
    """Midnight is a day, one is true, and numbers are rounded to the digits that were asked for."""
    kinds = pa.schema([("d", pa.date32()), ("b", pa.bool_()), ("n", pa.decimal128(10, 2)), ("f", pa.float32())])
    midnight = pa.array([86_400_000_000], pa.timestamp("us"))
    pq.write_table(pa.table({"d": midnight, "b": [1], "n": [0.1 + 0.2], "f": [float("inf")]}), tmp_path / "a")

    (found,) = read(FileSource(tmp_path, schema=kinds))

    expected = (dt.date(1970, 1, 2), True, decimal.Decimal("0.30"), float("inf"))
    assert expected == tuple(found.values())


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_a_local_job_reads_what_a_sink_wrote(tmp_path: Path) -> None:
    """Partitions of a FileSink in, each row once, at another parallelism."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    stream = environment.from_source(CollectionSource(rows(0, 500).to_batches(100), splits=4), uid="in")
    stream.sink_to(FileSink(tmp_path / "out", JsonFormat(SCHEMA), compression="gzip"), uid="out")
    environment.execute("write", local=True)

    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(3)
    source = FileSource(tmp_path / "out", JsonFormat(SCHEMA), batch_rows=50)
    environment.from_source(source, uid="files").sink_to(CollectSink("files"), uid="rows")
    assert 500 == environment.execute("read", local=True, threads=3).rows_read
    found = CollectSink.rows("files")
    assert rows(0, 500).to_pylist() == sorted((dict(row) for row in found), key=lambda row: row["n"])


def test_a_name_that_is_no_utf8_is_told_in_one_line(tmp_path: Path) -> None:
    """One such file in a directory made a traceback of Arrow's, which did not say which file it was."""
    Path(os.fsdecode(bytes(tmp_path / "a") + b"\xff")).touch()
    source = FileSource(tmp_path, JsonFormat(SCHEMA))
    with pytest.raises(ConnectorError, match=r"a\\xff' has a name that is no UTF-8: rename it, or move it away"):
        source.enumerate_splits()
