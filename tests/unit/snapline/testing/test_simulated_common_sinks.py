"""Sinks whose subtasks commit together, in `simulate`: Snapline's are replaced, a user's own are watched."""

from __future__ import annotations

import uuid

import pytest

import snapline as sl
from snapline.connectors import DeltaSink
from snapline.testing import SimulationError, simulate
from tests.unit.snapline.testing.planted_mistakes import OUTSIDE, BuffersRows, rows_of


class Writer(sl.SinkWriter):
    """Stages rows outside."""

    def __init__(self):
        self.rows = []

    def write(self, batch):
        self.rows += [row["n"] for row in batch.to_pylist()]

    def prepare_commit(self, checkpoint_id):
        if not self.rows:
            return []
        name = uuid.uuid4().hex
        OUTSIDE.setdefault("staged", {})[name], self.rows = self.rows, []
        return [sl.Committable({"name": name})]


class Publish(sl.GlobalCommitter):
    """Publishes a checkpoint once."""

    def last_committed(self, job_id, sink_uid):
        return OUTSIDE.get("noted")

    def commit(self, together):
        if together.checkpoint_id > (OUTSIDE.get("noted") or 0):
            OUTSIDE["noted"] = together.checkpoint_id
            self.publish(together)

    def publish(self, together):
        for one in together.committables:
            OUTSIDE.setdefault("table", []).extend(OUTSIDE["staged"][one.data["name"]])


class PublishAgain(Publish):
    """Notes nothing."""

    def last_committed(self, job_id, sink_uid):
        return None

    def commit(self, together):
        self.publish(together)


class Table(sl.Sink):
    """A sink of the user's."""

    commits_together = True

    def __init__(self, committer):
        self.committer = committer

    def create_writer(self, context, restored):
        return Writer()

    def create_global_committer(self, context):
        return self.committer()


class Compacted(Table):
    """The same, with something between writers and committer."""

    def before_committing(self, committables):
        return committables.map_batches(lambda batch: batch, uid="compact")


def table():
    """The rows that lie in the target."""
    return list(OUTSIDE.get("table", []))


def test_a_table_of_snaplines_is_replaced(tmp_path):
    """No row is written to the disk, and rows are visible once."""
    path = tmp_path / "table"
    report = simulate(lambda env: rows_of(env, splits=2).sink_to(DeltaSink(path), uid="table"), seeds=12)
    assert report.ok, report.story
    assert not list(path.rglob("*.parquet"))


def test_a_mistake_before_such_a_table_is_found():
    """The story names the operator, and not the writer whose committables are others in each run."""
    report = simulate(
        lambda env: rows_of(env).flat_map(BuffersRows(), uid="pairs").sink_to(DeltaSink("/none"), uid="table"),
        seeds=200,
        check=False,
    )
    assert "it begins at operator 'pairs'" in report.story, str(report)


@pytest.mark.parametrize("sees_target", [True, False])
def test_a_right_sink_of_the_users_passes(sees_target):
    """By what lies in the target, and by what was committed."""
    report = simulate(
        lambda env: rows_of(env, splits=2).sink_to(Table(Publish), uid="table"),
        seeds=12,
        outputs={"table": table} if sees_target else None,
        before_each=OUTSIDE.clear,
    )
    assert report.ok, report.story


def test_a_committer_that_notes_nothing_is_found():
    """A commit whose answer was lost comes again."""
    report = simulate(
        lambda env: rows_of(env).sink_to(Table(PublishAgain), uid="table"),
        seeds=200,
        outputs={"table": table},
        before_each=OUTSIDE.clear,
        check=False,
    )
    assert "it begins at operator 'table-committer'" in report.story, str(report)
    assert "is noted already" in report.story


def test_committables_that_are_changed_need_the_target():
    """What was committed says nothing of the rows then."""
    build = lambda env: rows_of(env).sink_to(Compacted(Publish), uid="table")  # noqa: E731
    with pytest.raises(SimulationError, match=r"'table' \(Compacted\) changes what was pre-committed.*outputs="):
        simulate(build, seeds=1)
    assert simulate(build, seeds=6, outputs={"table": table}, before_each=OUTSIDE.clear).ok
