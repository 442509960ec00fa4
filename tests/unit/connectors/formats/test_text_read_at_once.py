"""Lines of CSV and JSON that are read together are what they are one by one, whatever is wrong with some of them."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from snapline.connectors.formats import CsvFormat, JsonFormat, file_reading

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])
CSV = (b"1,a", b'3,"x,y"', b'4,"q\nz"', b'5,"a""b"', b"", b"x,y", b"6", b"7,c,d", b'"9",e', b"10,a\rb", b'11,"\n\n"',
       "12,\u00fc".encode(), b"\xff,1", b'13,6" x', b'14,y"', b'z",15')  # fmt: skip
JSON = (b'{"n": 1, "word": "a"}', b"{}", b"", b' {"n": 3} ', b'{"n": "x"}', b'{"n": 4}{"n": 5}', b"[1]", b'{"n": 6', b"}",
        b'{"word": "a\\nb"}', b'{"n": 7, "m": {"x": 1}}', b'{"word": "q}\n{"}', b"nonsense")  # fmt: skip


def some_text(draw: random.Random, lines: tuple[bytes, ...]) -> bytes:
    """Lines that end in one way or another, the last perhaps not at all."""
    breaks = (b"\n", b"\n", b"\n", b"\r\n", b"\n\n")
    text = b"".join(draw.choice(lines) + draw.choice(breaks) for _ in range(draw.randint(1, 12)))
    return text.removesuffix(b"\n") if draw.random() < 0.3 else text


def read(rows: Any, text: bytes, batch_rows: int) -> Iterator[Any]:
    """What a file holds: rows, places to go on from, and bad lines by their numbers; and the rest from each place."""
    found = list(file_reading.text_rows(rows, io.BytesIO(text), {}, batch_rows))
    for each in found:
        yield each.rows.to_pylist(), dict(each.position), [(bad.number, bad.value) for bad in each.bad]
        rest = file_reading.text_rows(rows, io.BytesIO(text), each.position, batch_rows)
        yield [row for more in rest for row in more.rows.to_pylist()]


@pytest.mark.parametrize("texts", [40, pytest.param(120, marks=pytest.mark.rare)])
@pytest.mark.parametrize(("rows", "lines"), [(CsvFormat(SCHEMA), CSV), (JsonFormat(SCHEMA), JSON)], ids=["csv", "json"])
def test_lines_read_together_are_what_they_are_one_by_one(rows: Any, lines: tuple[bytes, ...], texts: int) -> None:
    """Good rows, bad lines with their numbers, and positions, in blocks and batches of any size."""
    draw = random.Random(7)
    for _ in range(texts):
        text, batch_rows = some_text(draw, lines), draw.choice([1, 3, 100])
        with patch.object(file_reading, "BLOCK_BYTES", draw.choice([5, 64, 1 << 20])):
            together = list(read(rows, text, batch_rows))
            with patch.object(file_reading, "_decoded_at_once", lambda _, taken, **__: (None, taken)):
                assert list(read(rows, text, batch_rows)) == together, text
