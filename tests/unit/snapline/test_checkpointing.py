"""`env.checkpointing`: each method sets its key, and refuses what cannot be."""

from __future__ import annotations

import datetime as dt

import pytest

import snapline as sl
from snapline.dataflow.config import OPTIONS

SETS = [
    (lambda c: c.interval(1500), "execution.checkpointing.interval", "1500 ms"),
    (lambda c: c.interval(dt.timedelta(seconds=2)), "execution.checkpointing.interval", "2000 ms"),
    (lambda c: c.mode("AT_LEAST_ONCE"), "execution.checkpointing.mode", "AT_LEAST_ONCE"),
    (lambda c: c.unaligned(), "execution.checkpointing.unaligned.enabled", "true"),
    (lambda c: c.aligned_timeout(7), "execution.checkpointing.aligned-checkpoint-timeout", "7 ms"),
    (lambda c: c.timeout(dt.timedelta(minutes=1)), "execution.checkpointing.timeout", "60000 ms"),
    (lambda c: c.min_pause(0), "execution.checkpointing.min-pause", "0 ms"),
    (lambda c: c.max_concurrent(2), "execution.checkpointing.max-concurrent-checkpoints", "2"),
    (lambda c: c.tolerable_failures(-1), "execution.checkpointing.tolerable-failed-checkpoints", "-1"),
    (lambda c: c.after_tasks_finish(False), "execution.checkpointing.checkpoints-after-tasks-finish", "false"),
    (
        lambda c: c.retention("DELETE_ON_CANCELLATION"),
        "execution.checkpointing.externalized-checkpoint-retention",
        "DELETE_ON_CANCELLATION",
    ),
    (lambda c: c.retained(3), "execution.checkpointing.num-retained", "3"),
    (lambda c: c.directory("s3://bucket/c"), "execution.checkpointing.dir", "s3://bucket/c"),
    (lambda c: c.savepoint_directory("s3://bucket/s"), "execution.checkpointing.savepoint-dir", "s3://bucket/s"),
    (lambda c: c.backend("rocksdb"), "state.backend.type", "rocksdb"),
    (lambda c: c.incremental(), "execution.checkpointing.incremental", "true"),
    (lambda c: c.local_recovery(), "execution.state-recovery.from-local", "true"),
]


@pytest.fixture
def environment() -> sl.StreamExecutionEnvironment:
    """One without settings."""
    return sl.StreamExecutionEnvironment.get_execution_environment()


@pytest.mark.parametrize(("call", "key", "text"), SETS)
def test_a_method_sets_its_key_and_names_it(environment, call, key, text) -> None:
    """What it sets can be read; calls can be chained."""
    assert isinstance(call(environment.checkpointing), sl.Checkpointing)
    assert text == environment.configuration[key]
    OPTIONS[key].read(environment.configuration[key])


def test_every_method_has_a_test_and_says_its_key(environment) -> None:
    """The docstring of a method names the key of the settings page."""
    methods = {name: value for name, value in vars(sl.Checkpointing).items() if not name.startswith("_")}
    keys = {key for _, key, _ in SETS}
    assert keys == {key for key in OPTIONS if any(f"`{key}`" in (m.__doc__ or "") for m in methods.values())}
    assert len(methods) == len(keys)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.interval(9), "execution.checkpointing.interval must be at least 10 ms, got 9"),
        (
            lambda c: c.interval("1 s"),
            "execution.checkpointing.interval is whole milliseconds or a timedelta, got '1 s'",
        ),
        (lambda c: c.timeout(0), "execution.checkpointing.timeout must be at least 1 ms, got 0"),
        (lambda c: c.mode("SOMETIMES"), "execution.checkpointing.mode = 'SOMETIMES': expected one of"),
        (lambda c: c.backend("heap"), "state.backend.type = 'heap': expected one of hashmap, rocksdb"),
        (lambda c: c.unaligned("no"), "execution.checkpointing.unaligned.enabled is True or False, got 'no'"),
        (lambda c: c.retained(0), "execution.checkpointing.num-retained must be a whole number, at least 1, got 0"),
        (lambda c: c.directory(None), "execution.checkpointing.dir is a text, got None"),
    ],
)
def test_what_cannot_be_is_refused_at_once(environment, call, said) -> None:
    """By key, and with what is allowed; nothing is set."""
    with pytest.raises(sl.ConfigurationError) as raised:
        call(environment.checkpointing)
    assert said in str(raised.value)
    assert {} == dict(environment.explicit)
