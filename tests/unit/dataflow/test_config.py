"""Settings are typed, checked, and named when wrong."""

from __future__ import annotations

import re
import threading

import pytest

from snapline.dataflow.config import (
    CHECKPOINTING_INTERVAL,
    CHECKPOINTING_MODE,
    FILE_THRESHOLD,
    OPTIONS,
    Configuration,
    ConfigurationError,
    parse_duration_ms,
    parse_size_bytes,
)
from snapline.dataflow.earlier_names import NAMES_OF_FLINK_1


def test_names_of_flink_1_are_answered_with_those_of_today() -> None:
    """`state.checkpoints.dir` was answered with a setting of the page, which it resembles."""
    for given, meant in NAMES_OF_FLINK_1.items():
        assert meant in OPTIONS
        with pytest.raises(ConfigurationError, match=f"unknown setting '{given}'; did you mean '{meant}'"):
            Configuration({given: "/a"})


def test_unknown_key_names_the_nearest():
    """A typo costs one look, not a night."""
    with pytest.raises(ConfigurationError, match=r"did you mean 'execution.checkpointing.interval'"):
        Configuration({"execution.checkpointing.intervall": "1s"})


@pytest.mark.parametrize("key", ["EXECUTION-CHECKPOINTING-INTERVAL", "Taskmanager.NumberOfTaskSlots", "S3.EndPoint"])
def test_unknown_key_in_capitals_names_the_nearest_too(key):
    """Variables of the environment are in capitals for most people, and SNAPLINE_CONF_ is no exception."""
    with pytest.raises(
        ConfigurationError, match=r"did you mean '(execution.ch.*interval|taskmanager.nu.*|s3.endpoint)'"
    ):
        Configuration({key: "1"})


def test_bad_value_names_key_value_and_form():
    """All three are in the message."""
    with pytest.raises(ConfigurationError, match=r"execution.checkpointing.interval = 'soon': expected a duration"):
        Configuration({"execution.checkpointing.interval": "soon"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10 s", 10_000), ("500ms", 500), ("3 min", 180_000), ("7", 7), ("1.5 s", 1500), ("2 hours", 7_200_000)],
)
def test_durations(text, expected):
    """Flink's spelling."""
    assert expected == parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("20 kb", 20_480), ("64mb", 67_108_864), ("12", 12), ("1 KiB", 1024), ("3 t", 3 << 40), ("2 tebibytes", 2 << 40)],
)
def test_sizes(text, expected):
    """Powers of 1024."""
    assert expected == parse_size_bytes(text)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("heartbeat.timeout", "9223372036854775807", "a duration of 100000 d at most"),
        ("heartbeat.timeout", "9" * 400, "a duration of 100000 d at most"),
        ("execution.checkpointing.data-inline-threshold", "8589934592 gb", "a size of less than 8589934592 gb"),
        ("web.checkpoints.history", "9" * 20, "a whole number up to 9223372036854775807"),
        ("restart-strategy.exponential-delay.backoff-multiplier", "1e400", "a number that has an end"),
    ],
)
def test_what_nothing_has_room_for_is_refused(key: str, value: str, expected: str) -> None:
    """No TaskManager could register, no JobMaster be built, or Python said that infinity is no integer. Of a long value
    the line has the beginning."""
    with pytest.raises(ConfigurationError, match=re.escape(key)) as raised:
        Configuration({key: value})
    assert expected in str(raised.value)
    assert len(str(raised.value)) < 350


def test_the_longest_duration_can_be_waited_for() -> None:
    """By a thread, whose waits have the shortest end."""
    assert parse_duration_ms("100000 d") / 1000 < threading.TIMEOUT_MAX


def test_defaults_and_layers():
    """Later layers win; what nobody set has its default."""
    base = Configuration({CHECKPOINTING_INTERVAL.key: "1 s"})
    layered = base.with_values({CHECKPOINTING_INTERVAL.key: "2 s", CHECKPOINTING_MODE.key: "at_least_once"})

    assert 2000 == layered.get_option(CHECKPOINTING_INTERVAL)
    assert "AT_LEAST_ONCE" == layered.get_option(CHECKPOINTING_MODE)
    assert 20_480 == layered.get_option(FILE_THRESHOLD)


def test_secrets_are_hidden():
    """What is printed can go to a log."""
    assert "hunter2" not in repr(Configuration({"security.auth.token": "hunter2"}))


def test_an_older_name_is_the_same_setting():
    """Whichever is said last counts; the value is found under the name of today."""
    older, newer = "state.backend.local-recovery", "execution.state-recovery.from-local"

    assert dict(Configuration({older: "true"})) == {newer: "true"}
    assert dict(Configuration({newer: "true"}).with_values({older: "false"})) == {newer: "false"}
    with pytest.raises(ConfigurationError, match=r"execution\.state-recovery\.from-local = 'yes'"):
        Configuration({older: "yes"})


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("parallelism.default", "0", "1 or more"),
        ("execution.batch.target-rows", "0", "1 or more"),
        ("taskmanager.numberOfTaskSlots", "two", "a whole number, 1 or more"),
        ("pipeline.max-parallelism", "100000", "-1 to 32768"),
        ("restart-strategy.exponential-delay.jitter-factor", "7", "0.0 to 1.0"),
        ("jobmanager.rpc.address", "localhost", "host:port, such as 127.0.0.1:6123"),
        ("jobmanager.rpc.address", "localhost:99999", "host:port, such as 127.0.0.1:6123"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_the_bounds(key, text, expected):
    """When it is set, and not when something depends on it."""
    with pytest.raises(ConfigurationError) as raised:
        Configuration({key: text})
    assert f"{key} = {text!r}: expected {expected}" == str(raised.value)


def test_bounds_themselves_are_allowed():
    """Also the -1 that stands for no bound, and addresses with any port."""
    bounds = {
        "execution.checkpointing.tolerable-failed-checkpoints": "-1",
        "pipeline.max-parallelism": "32768",
        "jobmanager.rpc.address": "[::1]:0",
    }
    assert bounds == dict(Configuration(bounds))
