"""The job of the demo: a year of real flights from New York, two exactly-once outputs.

(a) `daily`: per origin, carrier and event-time day: flights, cancelled ones, mean and max departure delay; vectorised.
(b) `alerts`: per aircraft, row by row: one alert when it leaves 30 minutes late or more for the third time in a row, in
    event-time order whatever order the splits are read in. Cancelled flights never left and do not count.

The same file runs with nothing configured, under spark-submit, and against a coordinator that runs as a daemon:

    python -m examples.flights --input flights.parquet --output out
    spark-submit --master 'local-cluster[2,1,1024]' examples/flights.py --input flights.parquet --output out
    snapline run examples/flights.py -- --input flights.parquet --output out
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import snapline as sl

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the flights' times are wall clock, without a zone
DAY_MS = 86_400_000
END_MS = 253_402_300_799_999
"""The last millisecond that Python can name; the watermark after the last flight lies beyond."""
LATE_MINUTES = 30
IN_A_ROW = 3

COLUMNS = ["scheduled_departure", "origin", "carrier", "flight", "tailnum", "dep_time", "dep_delay"]

ALERT_SCHEMA = pa.schema(
    [
        ("tailnum", pa.string()),
        ("scheduled_departure", pa.timestamp("ms")),
        ("origin", pa.string()),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("dep_delay", pa.int64()),
    ]
)


def mark_cancelled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add `cancelled`: 1 for a flight that never left."""
    return batch.append_column("cancelled", pc.cast(pc.is_null(batch.column("dep_time")), pa.int64()))


def left_with_known_aircraft(batch: pa.RecordBatch) -> pa.Array:
    """Flights that did leave, and of which the aircraft is known."""
    return pc.and_(pc.is_valid(batch.column("tailnum")), pc.is_valid(batch.column("dep_delay")))


class ThirdTimeLate(sl.KeyedProcessFunction):
    """Keeps the flights of an aircraft until the watermark has passed them, then counts late ones in a row."""

    def open(self, context: sl.RuntimeContext) -> None:
        """Create the two states of a key."""
        flight = pa.struct([field for field in ALERT_SCHEMA if field.name != "tailnum"])
        self.waiting = context.get_list_state(sl.ListStateDescriptor("waiting", flight))
        self.late_in_a_row = context.get_state(sl.ValueStateDescriptor("late-in-a-row", pa.int64()))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> None:
        """Flights may come in any order; wait for event time."""
        self.waiting.add({name: row[name] for name in ALERT_SCHEMA.names if name != "tailnum"})
        context.timer_service.register_event_time_timer(context.timestamp_ms or 0)

    def on_timer(self, timestamp_ms: int, context: sl.ProcessContext) -> Iterator[sl.Row]:
        """No flight up to the watermark is missing: take them all, in order. Later timers find nothing left to do."""
        complete_until = EPOCH + timedelta(milliseconds=min(context.timer_service.current_watermark(), END_MS))
        waiting = self.waiting.get()
        due = [flight for flight in waiting if flight["scheduled_departure"] <= complete_until]
        if not due:
            return
        self.waiting.update([flight for flight in waiting if flight["scheduled_departure"] > complete_until])
        late = self.late_in_a_row.value() or 0
        for flight in sorted(due, key=lambda f: (f["scheduled_departure"], f["origin"], f["carrier"], f["flight"])):
            late = late + 1 if flight["dep_delay"] >= LATE_MINUTES else 0
            if late == IN_A_ROW:
                yield {"tailnum": context.current_key, **flight}
        self.late_in_a_row.update(late)


def build(
    environment: sl.StreamExecutionEnvironment, flights: str, output: str, rows_per_second: int | None = None
) -> sl.StreamExecutionEnvironment:
    """Add the job to the environment."""
    departures = environment.from_source(
        sl.ParquetSource(flights, columns=COLUMNS, rows_per_second=rows_per_second),
        sl.WatermarkStrategy.for_monotonous_timestamps("scheduled_departure"),
        uid="flights",
    )
    (
        departures.map_batches(mark_cancelled, uid="mark-cancelled", name="mark cancelled")
        .key_by("origin", "carrier")
        .window(sl.TumblingEventTimeWindows(DAY_MS))
        .aggregate(
            uid="daily",
            name="daily",
            flights=sl.count(),
            cancelled=sl.sum("cancelled"),
            mean_delay=sl.mean("dep_delay"),
            max_delay=sl.max("dep_delay"),
        )
        .sink_to(sl.ParquetSink(f"{output}/daily"), uid="daily-sink", name="daily sink")
    )
    (
        departures.filter(left_with_known_aircraft, uid="departed", name="departed")
        .key_by("tailnum")
        .process(ThirdTimeLate(), uid="third-time-late", name="third time late", schema=ALERT_SCHEMA)
        .sink_to(sl.ParquetSink(f"{output}/alerts"), uid="alerts-sink", name="alerts sink")
    )
    return environment


def main(arguments: list[str] | None = None) -> int:
    """Run the job to its end; one line for an error that the user can mend."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--input", required=True, help="flights.parquet, as made by `make data`")
    parser.add_argument("--output", required=True, help="directory for daily/ and alerts/")
    parser.add_argument("--checkpoints", default="", help="base directory of checkpoints (default: below the output)")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--rows-per-second", type=int, default=None, help="read no faster than this")
    options = parser.parse_args(arguments)
    try:
        environment = sl.StreamExecutionEnvironment.get_execution_environment()
        environment.set_parallelism(options.parallelism).enable_checkpointing(1000)
        environment.set_checkpoint_dir(options.checkpoints or str(Path(options.output).resolve() / "_checkpoints"))
        build(environment, options.input, options.output, options.rows_per_second)
        result = environment.execute("flights")
    except sl.SnaplineError as error:
        print(f"flights: {error}", file=sys.stderr)
        return 1
    print(f"flights: {result.summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
