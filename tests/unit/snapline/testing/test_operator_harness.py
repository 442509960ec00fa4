"""The harness of one operator: routing, timers, state, snapshots at another parallelism, and what it refuses."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.config import ConfigurationError
from snapline.dataflow.errors import StateError
from snapline.testing import HarnessError, OperatorHarness, assert_same_rows

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.int64())])
KEYS = [f"key-{number}" for number in range(40)]


def rows(*values):
    """Rows of (key, number, time)."""
    return [dict(zip(SCHEMA.names, value, strict=True)) for value in values]


class Sum(sl.KeyedProcessFunction):
    """Adds up and says the sum at a timer, of either time."""

    def open(self, context):
        self.total = context.get_state(sl.ValueStateDescriptor("total", pa.int64()))

    def process_element(self, row, context):
        if row["n"] < 0:
            context.output("negative", row)
            return
        if row["n"] == 13:
            raise ValueError("unlucky")
        self.total.update((self.total.value() or 0) + row["n"])
        context.timer_service.register_event_time_timer(row["at"] + 100)
        context.timer_service.register_processing_time_timer(5_000)

    def on_timer(self, timestamp_ms, context):
        yield {"k": context.current_key, "total": self.total.value(), "timer": timestamp_ms}


def harness(parallelism=1, **others):
    """Of Sum."""
    return OperatorHarness(
        lambda s: s.key_by("k").process(Sum(), uid="sum"), SCHEMA, event_time="at", parallelism=parallelism, **others
    )


def test_rows_timers_state_and_side_output():
    """A function is driven step by step, and everything that it does can be looked at."""
    one = harness().push(rows(("a", 1, 0), ("b", 2, 10), ("a", 3, 20), ("a", -1, 30)))
    assert [] == one.rows()
    assert rows(("a", -1, 30)) == one.side_rows("negative")
    assert [] == one.side_rows("negative")
    assert [("a", 100), ("b", 110), ("a", 120)] == one.timers()
    assert [("a", 5_000), ("b", 5_000)] == one.timers(processing_time=True)
    assert_same_rows(one.state(), [{"k": "a", "total": 4}, {"k": "b", "total": 2}])
    assert [{"k": "a", "total": 4, "timer": 100}] == one.watermark(105).rows()
    assert 105 == one.current_watermark
    assert_same_rows(
        one.processing_time(5_000).rows(),
        [{"k": "a", "total": 4, "timer": 5_000}, {"k": "b", "total": 2, "timer": 5_000}],
    )
    one.close()


@pytest.mark.parametrize(("before", "after"), [(1, 3), (4, 2), (3, 3), (2, 5)])
def test_state_and_timers_survive_a_restore_at_another_parallelism(before, after):
    """Each key goes on once, whatever subtask owns it now, and its timers fire."""
    first = harness(before).push(rows(*((key, 1, 0) for key in KEYS)))
    snapshot = first.snapshot()
    second = snapshot.restore(parallelism=after).push(rows(*((key, 2, 50) for key in KEYS)))
    assert_same_rows(second.watermark(120).rows(), [{"k": key, "total": 3, "timer": 100} for key in KEYS])
    assert len(KEYS) == second.state().num_rows
    again = snapshot.restore()
    assert {1} == set(again.state()["total"].to_pylist())
    assert before == len(again._subtasks)


class CountsUnderItsKey(sl.KeyedProcessFunction):
    """Calls its state as the key is called."""

    def open(self, context: Any) -> None:
        self.seen = context.get_state(sl.ValueStateDescriptor("k", pa.int64()))

    def process_element(self, row: Any, context: Any) -> Any:
        self.seen.update((self.seen.value() or 0) + 1)
        yield {"k": row["k"], "total": self.seen.value()}


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_state_that_is_called_as_the_key_is_restored(backend: str) -> None:
    """Its snapshots were taken, and no job could start from them: two columns of one name were taken for damage."""
    setting = {"state.backend.type": backend, "state.backend.rocksdb.memory.fixed-per-slot": "1 kb"}
    schema = pa.schema([("k", pa.string()), ("total", pa.int64())])
    one = OperatorHarness(
        lambda s: s.key_by("k").process(CountsUnderItsKey(), schema=schema), SCHEMA, configuration=setting
    )
    for _ in range(2):
        one.push(rows(*((key, 1, 0) for key in KEYS)))
        one.rows()
        one = one.snapshot().restore(parallelism=2)
    assert_same_rows(one.push(rows(*((key, 1, 0) for key in KEYS))).rows(), [{"k": key, "total": 3} for key in KEYS])
    assert_same_rows(one.state(), [{"k": key, "k_": 3} for key in KEYS])
    one.close()


def test_a_harness_is_refused_after_its_snapshot():
    """Every verb says in one line that it ended, and how to go on; what was put out can still be taken."""
    one = harness().push(rows(("a", -1, 0)))
    one.snapshot()
    refused = "this harness ended with its snapshot: go on with snapshot.restore\\(\\), a harness of its own"
    for use in (
        lambda: one.push(rows(("a", 1, 0))),
        lambda: one.watermark(1),
        lambda: one.processing_time(1),
        one.end_input,
        one.snapshot,
        one.state,
        one.timers,
    ):
        with pytest.raises(HarnessError, match=f"^{refused}$"):
            use()
    assert rows(("a", -1, 0)) == one.side_rows("negative")


def test_the_exception_of_the_function_is_raised_as_it_is():
    """A test can expect it by its class."""
    with harness() as one, pytest.raises(ValueError, match=r"^unlucky$"):
        one.push(rows(("a", 13, 0)))


class KeepsOutside(sl.KeyedProcessFunction):
    """A mistake: what it counts is in no state."""

    def open(self, context):
        self.seen = 0

    def process_element(self, row, context):
        self.seen += 1
        yield {"seen": self.seen}


CLOSED: list[int] = []


class Model(sl.ProcessFunction):
    """Has what it needs from `open` on, if that succeeds, and says that it was closed."""

    def __init__(self, opens: bool) -> None:
        self.opens = opens

    def open(self, context):
        if not self.opens:
            raise OSError("there is no such model")
        self.number = context.subtask_index

    def process_element(self, row, context):
        yield row

    def close(self):
        CLOSED.append(self.number)
        if self.number < 2:
            raise OSError(f"the model {self.number} is lost")


@pytest.mark.parametrize("parallelism", [1, 2])
def test_what_open_has_raised_is_not_hidden_by_close(parallelism):
    """A function that was not opened closes what it has not got, and that was raised in its place."""
    with pytest.raises(OSError, match="there is no such model"):
        OperatorHarness(lambda stream: stream.process(Model(opens=False)), SCHEMA, parallelism=parallelism)


def test_every_subtask_is_closed_whatever_one_raises():
    """Those behind the first that raised were left open."""
    CLOSED.clear()
    one = OperatorHarness(lambda stream: stream.process(Model(opens=True)), SCHEMA, parallelism=3)
    with pytest.raises(OSError, match=r"the model \d is lost"):
        one.close()
    assert CLOSED == [0, 1, 2]
    one.close()


def test_what_has_left_memory_is_shown_once():
    """With `rocksdb` a key that had been on the disk was shown again as it was there, and so were its timers."""
    setting = {"state.backend.type": "rocksdb", "state.backend.rocksdb.memory.fixed-per-slot": "1 kb"}
    with harness(configuration=setting) as one:
        for number in (1, 2):
            for key in KEYS:
                one.push(rows((key, number, 0)))
        assert_same_rows(one.state(), [{"k": key, "total": 3} for key in KEYS])
        assert sorted(one.timers()) == sorted((key, 100) for key in KEYS)


def test_what_is_kept_outside_of_state_is_lost():
    """A restore begins with a function as it was written, as in a job."""
    one = OperatorHarness(lambda s: s.key_by("k").process(KeepsOutside()), SCHEMA)
    assert [{"seen": 1}, {"seen": 2}] == one.push(rows(("a", 1, 0), ("a", 1, 0))).rows()
    assert [{"seen": 1}] == one.snapshot().restore().push(rows(("a", 1, 0))).rows()


class SumOfBatches(sl.KeyedBatchProcessFunction):
    """The vectorised sum."""

    total = sl.ValueStateDescriptor("total", pa.int64())

    def process_batch(self, keys, batch, state):
        sums = np.zeros(len(keys), np.int64)
        np.add.at(sums, keys.rows, batch.column("n").to_numpy())
        old = state.get(self.total).fill_null(0).to_numpy(zero_copy_only=False)
        state.put(self.total, pa.array(old + sums))


def test_a_function_of_batches():
    """Its state is split and merged as that of any other."""
    one = OperatorHarness(lambda s: s.key_by("k").process_batches(SumOfBatches()), SCHEMA, parallelism=3)
    one = one.push(rows(*((key, 2, 0) for key in KEYS))).snapshot().restore(parallelism=2)
    one.push(rows(*((key, 5, 0) for key in KEYS)))
    assert_same_rows(one.state(), [{"k": key, "total": 7} for key in KEYS])


class Matched(sl.KeyedCoProcessFunction):
    """Remembers the left one, answers the right one."""

    def open(self, context):
        self.left = context.get_state(sl.ValueStateDescriptor("left", pa.int64()))

    def process_element1(self, row, context):
        self.left.update(row["n"])

    def process_element2(self, row, context):
        context.timer_service.register_event_time_timer(row["at"])
        yield {"k": row["k"], "left": self.left.value()}

    def on_timer(self, timestamp_ms, context):
        yield {"k": context.current_key, "left": -1}


def test_two_inputs():
    """Rows say which input they come on; event time is the least of both."""
    with OperatorHarness(
        lambda left, right: left.key_by("k").connect(right.key_by("k")).process(Matched()),
        SCHEMA,
        SCHEMA,
        event_time="at",
        parallelism=2,
    ) as two:
        two.push(rows(("a", 7, 0)), input=0)
        assert [{"k": "a", "left": 7}] == two.push(rows(("a", 0, 10)), input=1).rows()
        assert [] == two.watermark(50, input=0).rows()
        assert [{"k": "a", "left": -1}] == two.watermark(10, input=1).rows()
        assert 10 == two.current_watermark
        with pytest.raises(HarnessError, match="there is no input 2: the operator has 2, from 0 on"):
            two.push([], input=2)


def test_windows():
    """A window fires when the watermark passes it, in whichever subtask its key is after the restore."""

    def build(stream):
        return stream.key_by("k").window(sl.TumblingEventTimeWindows(100)).aggregate(total=sl.sum("n"))

    one = OperatorHarness(build, SCHEMA, event_time="at").push(rows(("a", 1, 0), ("b", 2, 50), ("a", 4, 150)))
    one = one.snapshot().restore(parallelism=3).push(rows(("a", 8, 99)))
    said = [(row["k"], row["total"]) for row in one.watermark(99).rows()]
    assert [("a", 9), ("b", 2)] == sorted(said)
    assert [("a", 4)] == [(row["k"], row["total"]) for row in one.end_input().rows()]


class Flaky(sl.AsyncFunction):
    """Fails twice for each row, and never answers a negative one."""

    def __init__(self):
        self.attempts = {}

    async def async_invoke(self, row):
        if row["n"] < 0:
            await asyncio.Event().wait()
        self.attempts[row["n"]] = self.attempts.get(row["n"], 0) + 1
        if self.attempts[row["n"]] < 3:
            raise OSError("try again")
        return [{"n": row["n"]}]

    def timeout(self, row):
        return [{"n": 0}]


@pytest.mark.parametrize("capacity", [1, 10])
def test_a_request_is_made_again_though_nobody_moves_the_clock(capacity):
    """What waits for the time of its next attempt alone does not wait for ever."""
    retry = sl.AsyncRetryStrategy.fixed_delay(3, 500)
    with OperatorHarness(lambda s: s.async_wait(Flaky(), capacity=capacity, retry=retry), SCHEMA) as one:
        one.push(rows(("x", 1, 0), ("x", 2, 0), ("x", 3, 0))).end_input()
        assert one.rows() == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_the_clock_gives_up_a_request_that_is_not_answered():
    """The moment comes with the clock, and not with the next row."""
    with OperatorHarness(lambda s: s.async_wait(Flaky(), timeout_ms=1_000), SCHEMA) as one:
        assert one.push(rows(("x", -1, 0))).processing_time(999).rows() == []
        assert one.processing_time(1_000).rows() == [{"n": 0}]


class Slow(sl.AsyncFunction):
    """Answers later rows first."""

    async def async_invoke(self, row):
        await asyncio.sleep(0.02 - row["n"] / 100)
        return [{"n": row["n"] * 2}]


def test_an_asynchronous_function():
    """The end of the input waits for all answers; ordered ones keep the order of their rows."""
    with OperatorHarness(lambda s: s.async_wait(Slow(), capacity=2), SCHEMA) as one:
        one.push(rows(("a", 0, 0), ("a", 1, 0), ("a", 2, 0))).end_input()
        assert [{"n": 0}, {"n": 2}, {"n": 4}] == one.rows()
        with pytest.raises(HarnessError, match="the input of this harness has ended"):
            one.push([])


class Rules(sl.Function):
    """Holds each batch's rows in operator state."""

    def initialize_state(self, context):
        self.split = context.operator_state_store.get_list_state("split")
        self.all = context.operator_state_store.get_union_list_state("all")
        self.values = list(self.split.get())
        self.restored = sorted(self.all.get())

    def snapshot_state(self, context):
        self.split.update(self.values)
        self.all.update(self.values)

    def __call__(self, batch):
        self.values += batch.column("n").to_pylist()
        return pa.RecordBatch.from_pylist([{"held": self.values, "all": self.restored}])


def test_operator_state_is_redistributed_as_in_a_job():
    """Split lists are dealt out element by element, union lists go to every subtask."""
    one = OperatorHarness(lambda s: s.map_batches(Rules()), SCHEMA)
    one = one.push(rows(*(("a", number, 0) for number in range(4)))).snapshot().restore(parallelism=2)
    for _ in range(2):
        one.push(rows(("a", 9, 0)))
    assert [[0, 1, 9], [2, 3, 9]] == [row["held"] for row in one.rows()]
    again = one.snapshot().restore(parallelism=1).push(rows(("a", 7, 0))).rows()
    assert [{"held": [0, 1, 9, 2, 3, 9, 7], "all": [0, 1, 2, 3, 9, 9]}] == again


class AsksLate(Rules):
    """Asks for its lists with its second batch, as a function does that has none to keep before."""

    def initialize_state(self, context) -> None:
        self.store, self.values, self.batches = context.operator_state_store, [], 0

    def snapshot_state(self, context) -> None:
        """Nothing: what there is has not been asked for."""

    def __call__(self, batch):
        self.batches += 1
        if self.batches == 1:
            return None
        found = self.store.get_list_state("split").get(), sorted(self.store.get_union_list_state("all").get())
        return pa.RecordBatch.from_pylist([{"held": found[0], "all": found[1]}])


class OtherModes(Rules):
    """What was split is to be a union, or the other way round."""

    def __init__(self, name: str) -> None:
        self.name = name

    def initialize_state(self, context) -> None:
        store = context.operator_state_store
        self.split = (store.get_union_list_state if self.name == "split" else store.get_list_state)(self.name)


@pytest.mark.parametrize(("name", "was", "now"), [("split", "split", "union"), ("all", "union", "split")])
def test_a_list_does_not_become_one_that_is_dealt_out_otherwise(name: str, was: str, now: str) -> None:
    """Each subtask took all elements of a union for its own part, so that they came once for each subtask."""
    written = OperatorHarness(lambda s: s.map_batches(Rules()), SCHEMA).push(rows(("a", 1, 0))).snapshot()
    with pytest.raises(
        StateError, match=f"list state '{name}' is {was}.* in the snapshot, and is now asked for as {now}"
    ):
        OperatorHarness(lambda s: s.map_batches(OtherModes(name)), SCHEMA, parallelism=2, restore_from=written)


def test_lists_that_nobody_has_asked_for_yet_outlast_a_checkpoint() -> None:
    """The first checkpoint after a restore held only the lists that had been asked for: the others were lost."""
    first = OperatorHarness(lambda s: s.map_batches(Rules()), SCHEMA)
    written = first.push(rows(*(("a", number, 0) for number in range(4)))).snapshot()
    late = OperatorHarness(lambda s: s.map_batches(AsksLate()), SCHEMA, parallelism=2, restore_from=written)
    again = late.push(rows(("a", 9, 0))).snapshot().restore().push(rows(("a", 9, 0))).snapshot()
    last = again.restore()
    for _ in range(4):
        last.push(rows(("a", 9, 0)))
    assert last.rows() == [{"held": [0, 1], "all": [0, 1, 2, 3]}, {"held": [2, 3], "all": [0, 1, 2, 3]}]


@pytest.mark.parametrize(
    ("build", "schemas", "others", "said"),
    [
        (lambda s: s, (SCHEMA,), {}, "one operator, and there are 0 \\(none\\): test several with MiniCluster"),
        (lambda s: s.map(dict).map(dict), (SCHEMA,), {}, "one operator, and there are 2"),
        (lambda: None, (), {}, "give the schema of each input"),
        (lambda s: s.map(dict), (SCHEMA,), {"event_time": "when"}, "event_time='when': no input has such a column"),
        (
            lambda s: s.map(dict),
            (SCHEMA,),
            {"parallelism": 0},
            "the parallelism of a harness is a whole number, 1 to 128",
        ),
        (lambda s: s.map(dict), (SCHEMA,), {"parallelism": "2"}, "a whole number, 1 to 128, not '2'"),
        (lambda s: s.map(dict), (SCHEMA,), {"max_parallelism": 10**6}, "whole number, 1 to 32768, not 1000000"),
        (lambda s: s.map(dict), ({"k": "string"},), {}, "give the schema of each input as a pa.schema"),
        (None, (SCHEMA,), {}, "build is a function of a stream, not None"),
        (lambda s: s.map(dict), (SCHEMA,), {"restore_from": "x"}, "what snapshot.. of a harness returned, not 'x'"),
    ],
)
def test_what_a_harness_cannot_hold(build, schemas, others, said):
    """One line names what is wrong."""
    with pytest.raises(HarnessError, match=said):
        OperatorHarness(build, *schemas, **others)


def test_rows_that_do_not_fit():
    """The schema is that of the input, and the line says which."""
    with harness() as one, pytest.raises(HarnessError, match="the rows do not fit the schema of input 0"):
        one.push([{"k": "a", "n": "many", "at": 0}])


def test_a_column_that_is_misspelled_is_no_null():
    """A row may leave columns out, and have more; one that does both has a wrong name in it."""
    said = "row 1 for input 0 has 'N', which is no column, and no 'n': the columns are 'k', 'n', 'at'"
    with harness() as one:
        with pytest.raises(HarnessError, match=said):
            one.push([*rows(("a", 1, 0)), {"k": "a", "N": 1, "at": 0}])
        one.push([{"k": "a", "n": 1, "at": 0, "more": 1}])
        one.push(row for row in rows(("a", 2, 1)))
        assert_same_rows(one.state(), [{"k": "a", "total": 3}])
    passed = OperatorHarness(lambda s: s.filter(sl.col("k") == "a"), SCHEMA).push([{"k": "a"}])
    assert passed.rows() == [{"k": "a", "n": None, "at": None}]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"state.backend.type": "memory"}, "state.backend.type = 'memory': expected .*hashmap"),
        ({"state.backnd.type": "rocksdb"}, r"unknown setting 'state.backnd.type'; did you mean 'state.backend.type'\?"),
    ],
)
def test_settings_of_a_harness_are_those_of_a_job(setting, said):
    """Another state backend, or another setting, was taken for the default."""
    with pytest.raises(ConfigurationError, match=said):
        harness(configuration=setting)
    with harness(configuration={"state.backend.type": "rocksdb"}) as one:
        assert one.push(rows(("a", 1, 0))).timers() == [("a", 100)]


@pytest.mark.parametrize(
    "given", [{"k": "a"}, "abc", [{"k": "a", "n": 2**70, "at": 0}], [{"k": "a", "n": 1.5, "at": 0}], [1], None]
)
def test_what_is_no_row_at_all(given):
    """A single row, which is no list of rows, a number that has no room, and one that would be cut."""
    with harness() as one, pytest.raises(HarnessError, match="the rows do not fit the schema of input 0"):
        one.push(given)


@pytest.mark.parametrize("given", [2**64, -(2**63) - 1, 9.5, "5", None, True])
def test_what_is_no_time(given):
    """A watermark beyond the last one kept windows firing without an end."""
    with harness() as one:
        for move, what in ((one.watermark, "a watermark"), (one.processing_time, "a processing time")):
            with pytest.raises(
                HarnessError, match=f"{what} is a whole number, -9223372036854775808 to 92233720368547758"
            ):
                move(given)


def test_there_is_no_input_of_another_name_and_no_restore_without_subtasks():
    """What is nought or a text is not taken for what is missing."""
    with harness() as one, pytest.raises(HarnessError, match="there is no input 'orders': the operator has 1"):
        one.push([], input="orders")
    with pytest.raises(HarnessError, match="the parallelism of a harness is a whole number, 1 to 128, not 0"):
        harness().snapshot().restore(parallelism=0)


def test_another_version_of_the_function_takes_the_state_over():
    """What a job does when it is restored with new code."""

    class Doubled(Sum):
        def process_element(self, row, context):
            yield {"total": self.total.value() * 2}

    snapshot = harness(2).push(rows(("a", 5, 0))).snapshot()
    one = OperatorHarness(lambda s: s.key_by("k").process(Doubled()), SCHEMA, event_time="at", restore_from=snapshot)
    assert [{"total": 10}] == one.push(rows(("a", 0, 0))).rows()
