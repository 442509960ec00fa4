"""What an operator of ours says of a snapshot that it cannot go on with, before the job is submitted."""

from __future__ import annotations

from typing import Any

import pytest

import snapline as sl
from snapline.coordinator.snapshots import NoSnapshot
from snapline.testing import MiniCluster, ScriptedSource, Stall


@pytest.mark.parametrize("uid", ["values", "count"])
def test_the_operator_is_named_also_where_its_uid_is_a_word_of_the_refusal(uid: str) -> None:
    """The uid may be what a state, a column or a type is called."""

    def job(**aggregates: Any):
        def build(env: sl.StreamExecutionEnvironment) -> None:
            source = env.from_source(ScriptedSource([{"k": 1, "values": 2}, Stall()]), uid="source")
            source.key_by("k").count_window(5).aggregate(uid=uid, **aggregates).sink_to(cluster.sink(), uid="sink")

        return build

    with MiniCluster() as cluster:
        running = cluster.start(job(n=sl.count(), values=sl.collect_list("values")))
        savepoint = running.run_until(lambda: running.rows_in(uid) == 1).stop()
        with pytest.raises(NoSnapshot, match=f"operator {uid!r}: state .* not in the job any more"):
            cluster.start(job(n=sl.count()), restore_from=savepoint)
