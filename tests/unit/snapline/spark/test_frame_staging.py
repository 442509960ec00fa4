"""Where rows between Spark and a job lie when nobody says where."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from snapline.dataflow.config import Configuration
from snapline.spark.frame_staging import staging_base


def test_rows_on_this_machine_are_for_this_user() -> None:
    """They lay in directories that all users of the machine could read; and there is one for the whole program."""
    session: Any = SimpleNamespace(conf={"spark.master": "local[1]"})

    base = Path(staging_base(Configuration({}), session, "from_dataframe"))

    assert base.stat().st_mode & 0o777 == 0o700
    assert staging_base(Configuration({}), session, "to_dataframe") == str(base)
