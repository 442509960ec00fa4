"""The job of the evolution tests: a profile per key, whose columns differ from version to version of the job.

As a user would write it: the states are declared inside `open`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import snapline as sl
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.parquet.parquet_sink import ParquetSink
from snapline.dataflow.api.functions import KeyedProcessFunction

PROFILES = {
    "first": pa.schema([("n", pa.int32()), ("city", pa.string())]),
    "second": pa.schema(
        [("n", pa.int64()), ("city", pa.string()), sl.with_default(pa.field("tier", pa.string()), "basic")]
    ),
    "narrow": pa.schema([("n", pa.int16()), ("city", pa.string())]),
    "dropping": pa.schema([("n", pa.int32())]),
}
OUTPUT = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("tier", pa.string())])


class Profile(KeyedProcessFunction):
    """Counts rows per key."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def open(self, context: Any) -> None:
        """The only place where the state is declared."""
        self.profile = context.get_state(sl.ValueStateDescriptor("profile", self.schema))

    def process_element(self, row: dict[str, Any], context: Any) -> Any:
        """One more."""
        profile = self.profile.value() or {"n": 0}
        self.profile.update({**profile, "n": profile["n"] + 1})
        yield {"key": row["key"], "n": profile["n"] + 1, "tier": profile.get("tier")}


def build(environment: sl.StreamExecutionEnvironment, arguments: Sequence[str]) -> sl.StreamExecutionEnvironment:
    """Add the job to the environment."""
    cli = argparse.ArgumentParser()
    cli.add_argument("--output", required=True)
    cli.add_argument("--version", choices=sorted(PROFILES), default="first")
    cli.add_argument("--key", choices=["key", "text"], default="key")
    cli.add_argument("--parallelism", type=int, default=2)
    options = cli.parse_args(arguments)
    environment.set_parallelism(options.parallelism)
    source = GeneratorSource(keys=40, rows_per_second=5_000, batch_rows=200, splits=4)
    stream = environment.from_source(source, uid="generator")
    if options.key == "text":
        schema = pa.schema([("key", pa.string()), ("value", pa.int64())])
        stream = stream.map_batches(
            lambda batch: batch.select(["key", "value"]).cast(schema), uid="to-text", schema=schema
        )
    counted = stream.key_by("key").process(Profile(PROFILES[options.version]), uid="profiles", schema=OUTPUT)
    counted.sink_to(ParquetSink(options.output), uid="sink")
    return environment


if __name__ == "__main__":
    import sys

    job = build(sl.StreamExecutionEnvironment.get_execution_environment(), sys.argv[1:])
    print(job.execute("evolving job").summary)
