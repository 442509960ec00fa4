"""What a failure tells of the user's code."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import snapline as sl
from snapline.dataflow.failures import USER_TRACEBACK
from snapline.taskmanager.operators.base.failure import OperatorFailure
from snapline.taskmanager.task.task_failure import InputPosition, serialize_failure


def failure_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        wrapped = OperatorFailure("m", "map", "open", error)
        return serialize_failure(wrapped, InputPosition()).traceback
    raise AssertionError("it did not fail")


def wrong_descriptor() -> None:
    sl.ValueStateDescriptor("", pa.int64())


def test_a_call_into_the_product_that_is_refused_is_the_users_last_frame() -> None:
    """A wrong name of a state showed five frames of the engine below the line that had to be changed."""
    told = failure_of(wrong_descriptor)

    assert told.startswith(USER_TRACEBACK)
    assert [line.split(", in ")[1] for line in told.splitlines() if "File " in line] == [
        "failure_of",
        "wrong_descriptor",
    ]


def test_frames_between_two_of_the_users_are_kept() -> None:
    """A library, or the engine, that calls the user's function back."""

    def divide(_: object) -> float:
        return 1 / 0

    told = failure_of(lambda: sorted([1, 2], key=divide))

    assert [line.split(", in ")[1] for line in told.splitlines() if "File " in line][-1] == "divide"
    assert told.rstrip().endswith("ZeroDivisionError: division by zero")
