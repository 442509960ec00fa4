"""What a failure tells of the user's code."""

from __future__ import annotations

from typing import Any, NoReturn

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.failures import USER_TRACEBACK, Blame
from snapline.taskmanager.operators.base.failure import OperatorFailure, RowFailure
from snapline.taskmanager.task.task_failure import MAX_SUMMARY, MAX_TRACEBACK, InputPosition, serialize_failure


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


def test_halves_of_characters_in_a_message_do_not_keep_a_failure_from_being_sent() -> None:
    """The name of a file that is no UTF-8 broke the connection of the TaskManager, and nobody was told of the error."""
    failure = serialize_failure(OperatorFailure("m", "map", "open", ValueError("no \udcff here")), InputPosition())

    assert failure.summary == "operator 'map' (uid 'm') failed in open: ValueError: no \\udcff here"
    assert failure.traceback == "ValueError: no \\udcff here\n"


def test_a_message_of_many_megabytes_is_told_by_its_begin_and_its_end() -> None:
    """A function that quoted its input had made a failure that fitted into no message: the job could not be seen."""
    error = ValueError(f"begins {'x' * 10_000_000} ends")
    failure = serialize_failure(OperatorFailure("m", "map", "open", error), InputPosition())

    for text, most in ((failure.summary, MAX_SUMMARY), (failure.traceback, MAX_TRACEBACK)):
        assert most <= len(text) <= most + 100
        assert "ValueError: begins xxx" in text
        assert text.rstrip().endswith("xxx ends")
        assert "characters left out" in text


class Speechless(Exception):
    """An exception that needs what it was not given, to say what it says."""

    def __str__(self) -> str:
        return self.args[1]

    __repr__ = __str__


class Traceless(Exception):
    """An exception that cannot be read at all."""

    @property
    def __traceback__(self) -> NoReturn:  # type: ignore[override]
        raise AttributeError("there is none")


@pytest.mark.parametrize("kind", [Speechless, Traceless])
def test_an_exception_that_cannot_say_what_it_is_still_names_its_operator_and_its_row(kind: type[Exception]) -> None:
    """It was blamed on Snapline, without the operator; one that had no traceback left its task standing for ever."""
    failure = serialize_failure(
        OperatorFailure("m", "map", "process_batch", RowFailure(3, kind("row 3"))), InputPosition("source", 1, 6)
    )

    said = {
        Speechless: "(its message cannot be had: __str__ raises IndexError)",
        Traceless: "row 3",
    }[kind]
    assert failure.summary == f"operator 'map' (uid 'm') failed in process_batch: {kind.__name__}: {said}"
    assert (failure.operator_uid, failure.blame) == ("m", Blame.USER)
    assert failure.position.endswith("row 3 of the batch")
