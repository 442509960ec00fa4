"""TaskManagers of one host that have tasks work on processors of their own, and one that is left uses all of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

import snapline as sl
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.taskmanager.threads.processor_share import LinuxHost
from tests.services.cluster import LocalCluster, wait_until

HOST = LinuxHost()

pytestmark = pytest.mark.skipif(
    len(HOST.processors) < 2, reason="needs two processors of Linux, all of which are allowed"
)


def processors_of(task_manager):
    """What each of its threads may use, where that is the same for all."""
    allowed = set()
    for thread in Path(f"/proc/{task_manager.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            allowed.add(frozenset(os.sched_getaffinity(int(thread.name))))
    return allowed.pop() if len(allowed) == 1 else None


def submit(cluster, **settings):
    environment = cluster.environment(2, **settings)
    stream = environment.from_source(GeneratorSource(keys=10, rows_per_second=1_000), uid="generator").key_by("key")
    stream.running_aggregate(uid="sums", n=sl.count()).sink_to(DiscardingSink(), uid="sink")
    return cluster.submit(environment, "shares")


def is_divided(first, second):
    """Whether the two use what they are to use: other tests' TaskManagers on this host count as well."""
    mine, theirs = processors_of(first), processors_of(second)
    if mine is None or theirs is None:
        return False
    if 2 <= len(HOST.names()) <= len(HOST.processors):
        return not mine & theirs
    return len(HOST.names()) > len(HOST.processors) and mine == theirs == frozenset(HOST.processors)


def test_two_task_managers_divide_the_processors_until_one_is_killed(tmp_path):
    """Two with a task each have no processor in common; after a kill of one, the other uses all, alone on its host."""
    with LocalCluster(tmp_path, slots=(1, 1)) as cluster:
        cluster.wait_for_task_managers()
        first, second = cluster.task_managers
        assert processors_of(first) == frozenset(HOST.processors)
        job_id = submit(cluster)
        cluster.wait_for_checkpoints(job_id, 1)
        wait_until(lambda: is_divided(first, second), "processors of their own")
        second.kill()
        wait_until(
            lambda: len(HOST.names()) != 1 or processors_of(first) == frozenset(HOST.processors), "all processors again"
        )


@pytest.mark.rare
def test_with_the_setting_off_nothing_is_bound(tmp_path):
    """The TaskManagers have tasks, and may use every processor."""
    with LocalCluster(tmp_path, slots=(1, 1), settings={"taskmanager.processor-share": "false"}) as cluster:
        cluster.wait_for_task_managers()
        job_id = submit(cluster)
        cluster.wait_for_checkpoints(job_id, 1)
        assert {processors_of(each) for each in cluster.task_managers} == {frozenset(HOST.processors)}
