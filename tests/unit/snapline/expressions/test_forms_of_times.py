"""Forms of strftime and strptime mean what they mean in Polars, and are refused where they mean nothing."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.errors import JobDefinitionError

MOMENTS = pa.array(["2024-01-02 03:04:05.678901", "1969-12-31 23:59:59.000001", None]).cast(pa.timestamp("us"))
COLUMNS = {
    "us": MOMENTS,
    "ns": MOMENTS.cast(pa.timestamp("ns")),
    "ms": MOMENTS.cast(pa.timestamp("ms"), safe=False),
    "zoned": MOMENTS.cast(pa.timestamp("us", "Europe/Berlin")),
}


@pytest.mark.parametrize("form", ["%f", "%3f!%6f%9f", "%Y%.3f%.6f", "%s", "%%f%f%%s", "%H:%M:%S.%6f", "", "é%j"])
@pytest.mark.parametrize("column", COLUMNS)
def test_fractions_and_seconds_since_1970_are_written(column: str, form: str) -> None:
    """As Polars does; they came out as they stand in the form."""
    batch = pa.RecordBatch.from_pydict(COLUMNS)
    expected = pl.DataFrame(pl.from_arrow(batch)).select(pl.col(column).dt.strftime(form))[column].to_list()

    assert sl.col(column).dt.strftime(form).evaluate(batch).to_pylist() == expected


def test_fractions_of_times_and_dates() -> None:
    """A time of the day has one, and a date has zeros."""
    batch = pa.RecordBatch.from_pydict(
        {
            "t": pa.array([dt.time(1, 2, 3, 45)]),
            "d": pa.array([dt.date(1969, 12, 31)]),
            "m": pa.array([7], pa.time32("ms")),
        }
    )
    found = [sl.col(name).dt.strftime("%S%.6f").evaluate(batch).to_pylist() for name in ("t", "d", "m")]
    assert found == [["03.000045"], ["00.000000"], ["00.007000"]]
    assert sl.col("d").dt.strftime("%s").evaluate(batch).to_pylist() == ["-86400"]


@pytest.mark.parametrize("form", ["%k", "%P", "%-d", "%4f", "%.f", "%:z", "%Q", "%E", "%", "100%"])
def test_what_means_nothing_is_not_written_as_it_is(form: str) -> None:
    """Arrow keeps what it does not know, so that it stood in every row."""
    with pytest.raises(JobDefinitionError, match=r"strftime: '%.*' in .* has no meaning here"):
        sl.col("at").dt.strftime(form)


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S.%f", "%S%.f", "%G-W%V-%u", "%Y %U %w"])
def test_what_is_not_read_is_refused(form: str) -> None:
    """Weeks were left out, which gave 1 January 1900; a fraction failed in the first row."""
    with pytest.raises(JobDefinitionError, match=r"to_datetime: '%.*' in .*\.cast\(pyarrow.timestamp\('us'\)\) reads"):
        sl.col("at").str.to_datetime(form)
    with pytest.raises(JobDefinitionError, match="to_datetime takes a form such as '%Y-%m-%d', not None"):
        sl.col("at").str.to_datetime(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "text"), [("%-d/%m/%Y", "3/2/2021"), ("%k:%M %d/%m/%Y", " 4:05 03/02/2021"), ("%x", "02/03/21")]
)
def test_padding_and_short_forms_are_read(form: str, text: str) -> None:
    """As the C library reads them."""
    found = sl.col("s").str.to_datetime(form).evaluate(pa.RecordBatch.from_pydict({"s": [text]})).to_pylist()
    assert found[0].date() == dt.date(2021, 2, 3)


@pytest.mark.parametrize("day", ["2024-02-30", "2023-02-29", "2024-04-31", "2023-02-31"])
@pytest.mark.parametrize("rest", ["00:00 +1400", "23:59 -1200", "12:00 +0000"])
def test_a_day_that_is_not_there_is_no_day_with_an_offset_either(day: str, rest: str) -> None:
    """Arrow takes 30 February for 1 March."""
    batch = pa.RecordBatch.from_pydict({"s": [f"{day} {rest}"]})
    with pytest.raises(pa.ArrowInvalid, match="there is no such day"):
        sl.col("s").str.to_datetime("%Y-%m-%d %H:%M %z").evaluate(batch)


@pytest.mark.parametrize("offset", ["+1400", "-1200", "+0000", "+0530"])
def test_days_with_an_offset_are_read(offset: str) -> None:
    """The first and the last of each month of three years, at both ends of the day."""
    days = [dt.date(2023, 1, 1) + dt.timedelta(days=number) for number in range(3 * 365)]
    some = [day for day in days if day.day in (1, 2, 3, 28, 29, 30, 31)]
    texts: list[Any] = [f"{day} {time} {offset}" for day in some for time in ("00:00", "23:59")]
    expected = [dt.datetime.strptime(text, "%Y-%m-%d %H:%M %z") for text in texts]
    batch = pa.RecordBatch.from_pydict({"s": [*texts, None]})

    found = sl.col("s").str.to_datetime("%Y-%m-%d %H:%M %z")
    assert found.evaluate(batch).to_pylist() == [*expected, None]
    assert found.type_in(batch.schema) == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    "taken", [sl.col("t").dt.truncate("1d"), sl.col("t").dt.strftime("%Y"), sl.col("t").dt.epoch("s")]
)
def test_a_beginning_that_nanoseconds_have_no_room_for(taken: sl.Expr) -> None:
    """It wrapped to the year 2262."""
    batch = pa.RecordBatch.from_pydict({"t": pa.array([0, -(2**63)]).view(pa.timestamp("ns"))})
    with pytest.raises(pa.ArrowInvalid, match=r"that a time lies in began before what timestamp\[ns\] holds"):
        taken.evaluate(batch)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Sydney", "Africa/Cairo", "Asia/Tokyo", "+02:00"])
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_clocks_show_summer_time_after_2037(unit: str, zone: str) -> None:
    """Arrow knows no change of them after that year: summers were an hour off, and days of Berlin began at one."""
    months = [
        dt.datetime(year, month, 15, 12, 34, tzinfo=dt.UTC)
        for year in (2036, 2037, 2038, 2099)
        for month in range(1, 13)
    ]
    changes = [
        dt.datetime(2040, month, day, hour, tzinfo=dt.UTC) for month, day in ((3, 25), (10, 28)) for hour in range(24)
    ]
    batch = pa.record_batch({"t": pa.array([*months, None, *changes], pa.timestamp(unit, zone))})
    there = batch["t"].cast(pa.timestamp("us", zone)).to_pylist()  # of nanoseconds pandas would make the same mistake
    time, known = sl.col("t").dt, [one for one in there if one is not None]

    assert [one for one in time.hour().evaluate(batch).to_pylist() if one is not None] == [one.hour for one in known]
    assert [one for one in time.date().evaluate(batch).to_pylist() if one is not None] == [one.date() for one in known]
    texts = time.strftime("%Y-%m-%d %H:%M").evaluate(batch).to_pylist()
    assert texts == [one and f"{one:%Y-%m-%d %H:%M}" for one in there]
    for every in ("1h", "1d", "1mo"):
        begins = time.truncate(every).evaluate(batch).cast(pa.timestamp("us", zone)).to_pylist()
        if zone != "+02:00":
            frame = pl.DataFrame(pl.from_arrow(batch)).select(pl.col("t").dt.truncate(every))
            assert begins == frame["t"].to_list()
    moments = sl.col("t").dt.strftime("%Y-%m-%d %H:%M%z").evaluate(batch).to_pylist()
    told = [one and dt.datetime.strptime(one, "%Y-%m-%d %H:%M%z").timestamp() for one in moments]
    assert told == [one and one.timestamp() for one in there]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Sydney", "America/New_York"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_the_last_hours_of_9999_are_times_of_every_zone(unit: str, zone: str) -> None:
    """Databases have them for `for ever`: east of Greenwich it is the year 10000 by then, which Python has not."""
    last = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    batch = pa.record_batch({"t": pa.array([last, None], pa.timestamp(unit, zone))})
    time = sl.col("t").dt
    offset = dt.datetime(9998, 12, 31, 12, tzinfo=zoneinfo.ZoneInfo(zone)).utcoffset()
    shown = (last.replace(year=9998) + (offset or dt.timedelta())).hour

    assert [shown, None] == time.hour().evaluate(batch).to_pylist()
    assert [f"{shown:02}:59", None] == time.strftime("%H:%M").evaluate(batch).to_pylist()
    begins = time.truncate("1h").evaluate(batch).cast(pa.int64()).cast(pa.timestamp(unit)).to_pylist()
    assert [last.replace(tzinfo=None, minute=0, second=0), None] == begins


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_two_zones_are_compared_and_chosen_from_whatever_their_units(unit: str) -> None:
    """A column in milliseconds of Berlin was refused beside `datetime.now(UTC)`, whose unit is another one."""
    second = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    seconds, zoned = pa.array([0, 1, 2, None], pa.timestamp("s", "UTC")), pa.timestamp(unit, "Europe/Berlin")
    batch = pa.record_batch({"t": seconds.cast(zoned), "u": seconds.cast(pa.timestamp("us", "America/New_York"))})

    assert (sl.col("t") > second).evaluate(batch).to_pylist() == [False, False, True, None]
    assert (second >= sl.col("t")).evaluate(batch).to_pylist() == [True, True, False, None]
    assert (sl.col("t") == sl.col("u")).evaluate(batch).to_pylist() == [True, True, True, None]
    later = sl.when(sl.col("t") > second).then(sl.col("t")).otherwise(second)
    assert later.type_in(batch.schema).tz == "Europe/Berlin"
    assert later.dt.epoch("s").evaluate(batch).to_pylist() == [1, 1, 2, 1]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(
    "build", [lambda t, *others: sl.coalesce(t, *others), lambda t, *others: t.fill_null(others[-1])]
)
def test_a_time_of_another_zone_that_fills_a_null_is_that_moment(unit: str, build: Callable[..., sl.Expr]) -> None:
    """Its number was taken for one of the column: a second of 1970 in microseconds became the 12th of January."""
    second = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    seconds = pa.array([5, None], pa.timestamp("s", "UTC"))
    others = pa.nulls(2, pa.timestamp("us", "America/New_York"))
    batch = pa.record_batch({"t": seconds.cast(pa.timestamp(unit, "Europe/Berlin")), "u": others})
    filled = build(sl.col("t"), sl.col("u"), second)

    assert filled.type_in(batch.schema).tz == "Europe/Berlin"
    assert filled.dt.epoch("s").evaluate(batch).to_pylist() == [5, 1]
    with pytest.raises(JobDefinitionError, match="times with a zone are no times without one"):
        build(sl.col("t"), second.replace(tzinfo=None)).type_in(batch.schema)
