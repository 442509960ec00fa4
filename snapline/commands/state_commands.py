"""`snapline state ls|read|diff`: the state of a snapshot on the terminal, or as a file that other tools read.

Decides what is shown and in which format; what is read is `snapline.state`'s business. Nothing of the job is needed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snapline.commands.printing import echo, print_table
from snapline.dataflow.wire.message_json import without_nan

if TYPE_CHECKING:  # what reads state takes long to import, and other commands need none of it
    import pyarrow as pa

    from snapline.state_reader import KeyedTable, ListStates

_SHOWN_ROWS = 50
FIRED = "fired"
"""The field of a window's state that says up to when it has fired."""
FORMATS = click.Choice(["table", "json"])
_LIMIT = click.IntRange(1, 1 << 62)


@click.group()
def state() -> None:
    """Look into the state of a savepoint or checkpoint, without the job's code."""


@state.command("ls")
@click.argument("snapshot")
@click.option("--output", "-o", type=FORMATS, default="table")
def list_states(snapshot: str, output: str) -> None:
    """The operators with state: their keys and states, or their lists."""
    from snapline.state_reader import StateReader

    reader = StateReader(snapshot)
    tables = reader.tables()
    if output == "json":
        described = [*map(_described, tables), *map(_described_lists, reader.lists())]
        echo(json.dumps(described, indent=2))
        return
    metadata = reader.snapshot.metadata
    echo(f"{metadata.snapshot_type.value} {metadata.checkpoint_id} of {metadata.job_name!r}")
    shown: list[Sequence[str]] = []
    for table in tables:
        key = ", ".join(f"{field.name} {field.type}" for field in table.key_schema)
        first = [table.uid, key, f"{table.rows_at_most:,}", f"{table.size_bytes:,} B"]
        for number, column in enumerate(table.columns):
            kind = column.kind.replace("_", " ") + (f" ({column.serializer})" if column.serializer else "")
            shown.append([*(first if number == 0 else [""] * 4), column.name, kind, str(column.data_type)])
    for lists in reader.lists():
        for number, (name, elements) in enumerate(lists.elements.items()):
            size = f"{sum(map(len, elements)):,} B"
            first = [lists.uid if number == 0 else "", "-", f"{len(elements):,}", size]
            shown.append([*first, name, f"list ({lists.modes[name]})", "binary"])
    print_table(("UID", "KEY", "KEYS", "SIZE", "STATE", "KIND", "TYPE"), shown)


@state.command()
@click.argument("snapshot")
@click.argument("uid")
@click.option("--key", "-k", multiple=True, help="only this key; once per key column")
@click.option("--limit", type=_LIMIT, default=None, help=f"rows at most ({_SHOWN_ROWS} on a terminal)")
@click.option("--to", "target", type=click.Path(dir_okay=False, path_type=Path), help="a .parquet, .arrow or .csv file")
@click.option("--output", "-o", type=FORMATS, default="table")
def read(snapshot: str, uid: str, key: tuple[str, ...], limit: int | None, target: Path | None, output: str) -> None:
    """The rows of an operator's keyed state."""
    from snapline.state_reader import StateReader

    reader = StateReader(snapshot)
    batches = reader.read_batches(uid, key=key or None)
    _deliver(batches, reader.table(uid).schema, limit, target, output)


@state.command("diff")
@click.argument("before")
@click.argument("after")
@click.argument("uid")
@click.option("--limit", type=_LIMIT, default=None, help=f"rows at most ({_SHOWN_ROWS} on a terminal)")
@click.option("--to", "target", type=click.Path(dir_okay=False, path_type=Path), help="a .parquet, .arrow or .csv file")
@click.option("--output", "-o", type=FORMATS, default="table")
def difference(before: str, after: str, uid: str, limit: int | None, target: Path | None, output: str) -> None:
    """The keys whose state is not the same in two snapshots."""
    from snapline.state_reader import StateReader, changes_schema, diff

    old, new = StateReader(before), StateReader(after)
    _deliver(diff(old, new, uid), changes_schema(old, new, uid), limit, target, output)


def _deliver(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, limit: int | None, target: Path | None, output: str
) -> None:
    if target is not None:
        rows = _write(_limited(batches, limit), schema, target)
        echo(f"wrote {rows:,} rows to {target}")
        return
    shown_at_most = limit or _SHOWN_ROWS
    rows_read = list(islice(_rows(batches), shown_at_most + 1))
    shown = rows_read[:shown_at_most]
    if output == "json":
        echo(json.dumps(without_nan(shown), indent=2, default=_jsonable))
    else:
        print_table(schema.names, ([_spelled(row[name]) for name in schema.names] for row in shown))
    if limit is None and len(rows_read) > shown_at_most:
        echo(f"... there are more than {shown_at_most} rows: --limit N, or --to FILE.parquet", err=True)


def _write(batches: Iterable[pa.RecordBatch], schema: pa.Schema, target: Path) -> int:
    """To a file that appears whole or not at all."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    from snapline.state_reader import StateReadError

    makers: dict[str, Any] = {
        ".parquet": lambda sink: pq.ParquetWriter(sink, schema),
        ".arrow": lambda sink: pa.ipc.new_file(sink, schema),
        ".csv": lambda sink: pa.csv.CSVWriter(sink, schema),
    }
    make = makers.get(target.suffix)
    if make is None:
        raise StateReadError(f"{target}: the name of the file says its format, and ends in {', '.join(makers)}")
    partial = target.with_name(f".{target.name}.partial")
    rows = 0
    try:
        with make(str(partial)) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
    except BaseException as refusal:
        with contextlib.suppress(OSError):  # also where what the path goes through is no directory
            partial.unlink()
        if isinstance(refusal, (pa.ArrowException, OSError)):
            hint = "; .parquet and .arrow take states of any type" if isinstance(refusal, pa.ArrowInvalid) else ""
            raise StateReadError(f"{target} cannot be written: {refusal}{hint}") from refusal
        raise
    partial.replace(target)
    return rows


def _limited(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left is None:
            yield batch
        elif left > 0:
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """For people: what stands for `never` inside is shown as null. Raises StateReadError for a time that Python has
    not."""
    from snapline.dataflow.columnar.python_values import column_values
    from snapline.state_reader import StateReadError

    for batch in batches:
        try:
            columns = {name: column_values(batch.column(name)) for name in batch.schema.names}
        except ValueError as refusal:
            raise StateReadError(f"rows cannot be shown: {refusal}; --to FILE.parquet takes all of them") from refusal
        for number in range(batch.num_rows):
            row = {name: values[number] for name, values in columns.items()}
            yield {name: _for_people(value) for name, value in row.items()}


def _for_people(value: Any, name: str = "") -> Any:
    """A window that has not fired yet has the lowest number there is in `fired`."""
    if isinstance(value, dict):
        return {inner: _for_people(each, inner) for inner, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_people(each, name) for each in value]
    if name != FIRED:
        return value
    from snapline.dataflow.elements import MIN_WATERMARK_MS

    return None if value == MIN_WATERMARK_MS else value


def _described(table: KeyedTable) -> dict[str, Any]:
    return {
        "uid": table.uid,
        "name": table.name,
        "parallelism": table.parallelism,
        "max_parallelism": table.max_parallelism,
        "keys_at_most": table.rows_at_most,
        "size_bytes": table.size_bytes,
        "key": [{"name": field.name, "type": str(field.type)} for field in table.key_schema],
        "states": [
            {
                "name": column.name,
                "kind": column.kind,
                "type": str(column.data_type),
                "serializer": column.serializer,
                "ttl_ms": column.ttl_ms,
            }
            for column in table.columns
        ],
    }


def _described_lists(lists: ListStates) -> dict[str, Any]:
    return {
        "uid": lists.uid,
        "name": lists.name,
        "parallelism": lists.parallelism,
        "lists": [
            {
                "name": name,
                "mode": lists.modes[name],
                "elements": len(elements),
                "size_bytes": sum(map(len, elements)),
            }
            for name, elements in lists.elements.items()
        ],
    }


def _spelled(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


def _jsonable(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
