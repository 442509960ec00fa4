"""The flights are the real ones, all of them, in order; and an archive that is not the known one is refused."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from examples import flights_data

DATA = Path(__file__).resolve().parents[3] / ".venv" / "data"


def archive_with(tmp_path: Path, csv: bytes) -> Path:
    """An archive laid out like the real one."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as inner:
        inner.writestr("flights.csv", csv)
    path = tmp_path / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(flights_data.MEMBER)
        member.size = len(zipped.getvalue())
        tar.addfile(member, io.BytesIO(zipped.getvalue()))
    return path


def test_the_file_holds_every_flight_in_order_of_departure() -> None:
    """As many rows as the original, sorted, each with its departure, split into row groups of 20,000."""
    file = pq.ParquetFile(DATA / "flights.parquet")
    flights = file.read()

    departures = flights["scheduled_departure"].cast("int64").combine_chunks()
    assert flights_data.ROWS == flights.num_rows
    assert departures.null_count == 0
    assert not pc.any(pc.less(departures.slice(1), departures.slice(0, len(departures) - 1))).as_py()
    assert [20_000] * 16 + [16_776] == [
        file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)
    ]


def test_origin_carrier_flight_and_departure_name_a_flight() -> None:
    """The key that the demo's comparison relies on is unique."""
    key = ["scheduled_departure", "origin", "carrier", "flight"]
    flights = pq.read_table(DATA / "flights.parquet", columns=key)

    assert flights.group_by(key).aggregate([]).num_rows == flights.num_rows


def test_the_figures_are_those_of_the_original() -> None:
    """Totals of the original CSV: flights without departure, without tail number, per airport."""
    flights = pq.read_table(DATA / "flights.parquet")

    assert (8255, 2512) == (flights["dep_time"].null_count, flights["tailnum"].null_count)
    assert {"EWR": 120_835, "JFK": 111_279, "LGA": 104_662} == {
        item["values"]: item["counts"] for item in pc.value_counts(flights["origin"]).to_pylist()
    }


def test_another_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed flights.csv is named with its checksum, and no output appears."""
    archive = archive_with(tmp_path, b"year\n2013\n")

    assert flights_data.main(["--archive", str(archive), "--output", str(tmp_path / "out.parquet")]) == 1
    assert "has SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("content", [b"", b"not a tar file"])
def test_a_broken_archive_is_refused(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a download gives one line that says what to do."""
    (tmp_path / "a.tar.gz").write_bytes(content)

    assert flights_data.main(["--archive", str(tmp_path / "a.tar.gz"), "--output", str(tmp_path / "o")]) == 1
    assert "delete it and run make data" in capsys.readouterr().err
