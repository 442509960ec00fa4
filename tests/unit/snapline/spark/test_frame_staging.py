"""Where rows between Spark and a job lie when nobody says where."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import snapline as sl
from snapline.dataflow.config import HA_TYPE, Configuration
from snapline.dataflow.errors import JobDefinitionError
from snapline.spark.frame_staging import configuration_of, require_open, staging_base


def test_rows_on_this_machine_are_for_this_user() -> None:
    """They lay in directories that all users of the machine could read; and there is one for the whole program."""
    session: Any = SimpleNamespace(conf={"spark.master": "local[1]"})

    base = Path(staging_base(Configuration({}), session, "from_dataframe"))

    assert base.stat().st_mode & 0o777 == 0o700
    assert staging_base(Configuration({}), session, "to_dataframe") == str(base)


def test_what_spark_conf_says_of_a_job_holds_for_its_frames() -> None:
    """The directory of checkpoints was given to spark-submit, and `from_dataframe` asked for it to be set; rows of
    `to_dataframe` were removed though the setting was there with which the next program goes on with them."""
    conf = {
        "spark.master": "yarn",
        "spark.snapline.execution.checkpointing.dir": "s3://bucket/checkpoints",
        "spark.snapline.high-availability.type": "embedded",
    }
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: SimpleNamespace(getAll=conf.items)))

    configuration = configuration_of(sl.StreamExecutionEnvironment.get_execution_environment(), session)

    assert staging_base(configuration, session, "from_dataframe") == "s3://bucket/checkpoints"
    assert configuration.get_option(HA_TYPE) == "embedded"


def test_a_session_that_was_stopped_is_refused() -> None:
    """Java said that something was null, and for `to_dataframe` when the job had already run."""
    session = SimpleNamespace(sparkContext=object())

    with pytest.raises(JobDefinitionError, match=r"to_dataframe\('x'\): its session of Spark was stopped"):
        require_open(session, "to_dataframe('x')")
