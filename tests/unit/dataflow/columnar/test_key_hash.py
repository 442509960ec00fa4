"""The stable hash: the vectors of its document, published algorithms beside it, and what it must not depend on."""

from __future__ import annotations

import ast
import datetime as dt
import re
import struct
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.columnar.key_hash import NULL_HASH, hash_column, hash_columns
from snapline.dataflow.columnar.key_partition import assign_to_key_groups

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "key-group-hash.md"
SPELLED = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "double": pa.float64(),
    "float": pa.float32(),
    "date32[day]": pa.date32(),
}
MASK = 2**64 - 1


def parse_type(text: str) -> pa.DataType:
    decimal = re.fullmatch(r"decimal128\((\d+), (\d+)\)", text)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return SPELLED.get(text) or pa.type_for_alias(text)


def parse_column(type_text: str, value_text: str) -> pa.Array:
    """An array of one value, as the document spells it."""
    data_type = parse_type(type_text)
    if value_text.startswith("Decimal("):
        return pa.array([Decimal(value_text[9:-2])], data_type)
    if value_text == "float('nan')":
        return pa.array([float("nan")], data_type)
    value = ast.literal_eval(value_text)
    if pa.types.is_temporal(data_type):
        return pa.array([value], pa.int32() if data_type.bit_width == 32 else pa.int64()).cast(data_type)
    return pa.array([value], data_type)


def vectors() -> list[tuple[str, str, int]]:
    rows = re.findall(r"^\| (.+) \| (.+) \| 0x([0-9A-F]{8}) \|$", DOCUMENT.read_text(), re.MULTILINE)
    return [(types, values, int(hashed, 16)) for types, values, hashed in rows]


def fmix64(word: int) -> int:
    word ^= word >> 33
    word = word * 0xFF51AFD7ED558CCD & MASK
    word ^= word >> 33
    word = word * 0xC4CEB9FE1A85EC53 & MASK
    return word ^ (word >> 33)


def murmur3_32(data: bytes) -> int:
    state = 0
    for (block,) in struct.iter_unpack("<I", data):
        block = block * 0xCC9E2D51 & 0xFFFFFFFF
        block = (block << 15 | block >> 17) & 0xFFFFFFFF
        state ^= block * 0x1B873593 & 0xFFFFFFFF
        state = (state << 13 | state >> 19) & 0xFFFFFFFF
        state = (state * 5 + 0xE6546B64) & 0xFFFFFFFF
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return state ^ state >> 16


def hashed(values: Sequence[object], data_type: pa.DataType) -> list[int]:
    return hash_column(pa.array(values, data_type)).tolist()


def test_the_document_has_its_vectors() -> None:
    """A table that cannot be found would make the next test empty."""
    assert len(vectors()) >= 30


@pytest.mark.parametrize(("types", "values", "expected"), vectors())
def test_vectors_of_the_document(types: str, values: str, expected: int) -> None:
    """What is written down is what is computed, for ever."""
    pairs = zip(types.split(" ; "), values.split(" ; "), strict=True)

    assert hash_columns([parse_column(*pair) for pair in pairs]).tolist() == [expected]


def test_key_groups_of_the_document() -> None:
    """The key groups of the first ten integers."""
    text = re.search(r"max parallelism 128: ([\d, ]+)\.", DOCUMENT.read_text())

    assert text is not None
    assert assign_to_key_groups([pa.array(range(10))], 128).tolist() == [int(part) for part in text[1].split(",")]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_are_the_finaliser_of_murmur3(values: list[int]) -> None:
    """Against the published function."""
    assert [fmix64(value & MASK) >> 32 for value in values] == hashed(values, pa.int64())


@given(st.lists(st.binary(max_size=100), min_size=1))
def test_bytes_are_xxh64(values: list[bytes]) -> None:
    """Against the reference implementation, at every length."""
    assert [xxhash.xxh64_intdigest(value) >> 32 for value in values] == hashed(values, pa.binary())


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text()), min_size=1))
def test_several_columns_are_murmur3_of_their_hashes(rows: list[tuple[int, str]]) -> None:
    """Against the published function."""
    numbers, texts = pa.array([n for n, _ in rows], pa.int64()), pa.array([t for _, t in rows], pa.string())
    parts = zip(hash_column(numbers).tolist(), hash_column(texts).tolist(), strict=True)

    assert [murmur3_32(struct.pack("<II", *pair)) for pair in parts] == hash_columns([numbers, texts]).tolist()


@given(st.integers(-128, 127))
def test_the_width_of_an_integer_does_not_matter(value: int) -> None:
    """int8 5 is int64 5, and uint64 5."""
    widths = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    if value >= 0:
        widths += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]

    assert len({hashed([value], width)[0] for width in widths}) == 1


def test_floats_by_value() -> None:
    """-0.0 is 0.0, every NaN is one key, and a float32 is its double."""
    nan = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\xff")[0]
    zero, negative_zero, *nans = hashed([0.0, -0.0, float("nan"), nan], pa.float64())

    assert zero == negative_zero
    assert len(set(nans)) == 1
    assert hashed([0.1], pa.float32()) == hashed([np.float32(0.1).item()], pa.float64())


def test_temporal_units_do_not_matter() -> None:
    """A moment is a moment in seconds, milliseconds, microseconds and nanoseconds, before 1970 too."""
    for seconds in (0, 1_700_000_000, -1, -86_401):
        moments = {
            hash_column(pa.array([seconds * factor], pa.int64()).cast(pa.timestamp(unit)))[0]
            for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
        }
        assert len(moments) == 1
    assert hashed([dt.date(2013, 1, 1)], pa.date32()) == hashed([dt.date(2013, 1, 1)], pa.date64())
    zoned = pa.array([5], pa.int64()).cast(pa.timestamp("us", "Europe/Berlin"))
    assert hash_column(zoned).tolist() == hash_column(zoned.cast(pa.timestamp("us", "UTC"))).tolist()


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=4))
def test_the_scale_of_a_decimal_does_not_matter(value: Decimal) -> None:
    """1.5 is 1.50 is 1.500000."""
    assert hashed([value], pa.decimal128(30, 4)) == hashed([value], pa.decimal128(36, 9))


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38), st.integers(0, 30))
def test_decimals_as_documented(unscaled: int, scale: int, zeros: int) -> None:
    """Against a second implementation, on all 128 bits and with many zeros to strip."""
    unscaled = int(str(unscaled)[: -zeros or None].rstrip("-") or "0") * 10**zeros
    word, left = unscaled, scale if unscaled else 0
    while word and word % 10 == 0:
        word, left = word // 10, left - 1
    word %= 2**128
    expected = fmix64(fmix64(fmix64(word & MASK) ^ (word >> 64)) ^ (left & MASK)) >> 32
    raw = (unscaled % 2**128).to_bytes(16, "little")
    column = pa.Array.from_buffers(pa.decimal128(38, scale), 1, [None, pa.py_buffer(raw)])

    assert [expected] == hash_column(column).tolist()


def test_binaries_of_fixed_size() -> None:
    """The bytes count, not how their length is written down; also in a slice."""
    values = [b"abcd", None, b"efgh"]

    assert hashed(values, pa.binary(4)) == hashed(values, pa.binary())
    assert hash_column(pa.array(values, pa.binary(4)).slice(1)).tolist() == hashed(values[1:], pa.binary())


@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), min_size=1), st.data())
def test_batches_slices_and_encodings_do_not_matter(values: list[str | None], data: st.DataObject) -> None:
    """However a column is cut, sliced or encoded, a row hashes the same."""
    whole = pa.array(values, pa.string())
    expected = hash_column(whole).tolist()
    cut = data.draw(st.integers(0, len(values)))

    assert [int(NULL_HASH) if value is None else h for value, h in zip(values, expected, strict=True)] == expected
    assert hash_column(pa.chunked_array([whole.slice(0, cut), whole.slice(cut)])).tolist() == expected
    assert hash_column(whole.slice(cut)).tolist() == expected[cut:]
    assert hash_column(whole.dictionary_encode()).tolist() == expected
    assert hash_column(whole.dictionary_encode().slice(cut)).tolist() == expected[cut:]
    assert hash_column(whole.cast(pa.large_string())).tolist() == expected
    assert hash_column(whole.cast(pa.string_view())).tolist() == expected
    assert hash_column(whole.cast(pa.binary())).tolist() == expected


@given(st.lists(st.one_of(st.none(), st.booleans()), min_size=1, max_size=40), st.integers(0, 39))
def test_booleans_at_any_bit(values: list[bool | None], start: int) -> None:
    """Booleans are bits, and a slice begins inside a byte."""
    column = pa.array(values, pa.bool_())

    assert hash_column(column.slice(start)).tolist() == hash_column(column).tolist()[start:]
    assert hash_column(column).tolist() == hash_column(column.cast(pa.int8())).tolist()


def test_a_dictionary_with_a_null_in_it() -> None:
    """A null is a null, whether the index or the value is missing."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))

    assert hash_column(column).tolist() == hashed(["a", None, None], pa.string())


@pytest.mark.parametrize("data_type", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.decimal256(50, 0)])
def test_what_cannot_be_a_key_is_refused_by_type(data_type: pa.DataType) -> None:
    """The message names the type and what to do."""
    with pytest.raises(TypeError, match=re.escape(f"a value of type {data_type} cannot be (part of) a key")):
        hash_columns([pa.nulls(1, data_type)])


def test_a_key_needs_a_column() -> None:
    """Hashing nothing would put every row into one key group."""
    with pytest.raises(ValueError, match="at least one column"):
        hash_columns([])


def test_hashes_spread_over_key_groups() -> None:
    """Sequential keys, multiples and short strings fill 128 key groups about evenly."""
    numbers = np.arange(128 * 200)
    for column in (pa.array(numbers), pa.array(numbers * 1024), pa.array([f"k{n}" for n in numbers])):
        sizes = np.bincount(assign_to_key_groups([column], 128), minlength=128)
        assert sizes.min() > 130
        assert sizes.max() < 270
