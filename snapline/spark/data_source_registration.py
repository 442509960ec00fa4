"""`snapline.register_data_source`: a session of Spark learns to read what jobs have committed."""

from __future__ import annotations

from typing import Any


def register_data_source(spark: Any) -> Any:
    """Let a session of Spark read what jobs have committed, as the format `snapline`, with `spark.read` and with
    `spark.readStream`; returns the session. Raises what PySpark raises for a session that has ended.

    >>> sl.register_data_source(spark).read.format("snapline").load("s3://bucket/daily")  # doctest: +SKIP
    """
    from snapline.spark.data_source import PUSHDOWN, CommittedRowsDataSource
    from snapline.spark.own_python import use_own_python

    use_own_python(spark)
    spark.dataSource.register(CommittedRowsDataSource)
    spark.conf.set(PUSHDOWN, "true")  # off, Spark refuses a source that could
    return spark
