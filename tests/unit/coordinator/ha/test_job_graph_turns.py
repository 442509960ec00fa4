"""Writes and removals of one job's graph happen in the order in which they were begun."""

from __future__ import annotations

import threading
from functools import partial

from snapline.coordinator.ha.stored_job_graphs import JobGraphTurns
from snapline.dataflow.ids import JobID
from tests.services.cluster import wait_until

JOB, OTHER = JobID("a" * 32), JobID("b" * 32)


def has_more_than(turns: JobGraphTurns, number: int) -> bool:
    """Whether more have begun to write the job's graph."""
    return len(turns._waiting.get(JOB, ())) > number


def test_who_began_first_comes_first() -> None:
    """A removal that a hanging storage held up could come behind the submission that had followed it under the same id,
    and take the accepted job's graph away."""
    turns, done, go_on = JobGraphTurns(), list[str](), threading.Event()

    def write(what: str) -> None:
        with turns.of(JOB):
            go_on.wait()
            done.append(what)

    begun = [f"write {number}" for number in range(20)]
    threads = [threading.Thread(target=write, args=[what], daemon=True) for what in begun]
    for thread in threads:
        before = len(turns._waiting.get(JOB, ()))
        thread.start()
        wait_until(partial(has_more_than, turns, before), "it to wait for its turn")
    with turns.of(OTHER):
        assert not done, "another job waits for nobody"
    go_on.set()
    for thread in threads:
        thread.join()

    assert begun == done
    assert not turns._waiting, "jobs that are gone leave nothing"
