"""Jobs with a mistake of a user's each, which the simulator has to find; docs/testing.md lists them.

Each is a small job on short data that is right as long as nothing fails. `MISTAKES` says for each which operator a
story has to name, and a part of the reason that it has to give, if the code shows one.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource
from snapline.connectors.builtin.sinks import DiscardingSink

SHOPS = ["Aachen", "Bonn", "Celle", "Dresden", "Essen", "Fulda"]
ROWS = [{"shop": SHOPS[n % 6], "n": n, "t": n * 10} for n in range(36)]
WATERMARKS = sl.WatermarkStrategy.for_monotonous_timestamps("t")
OUTSIDE: dict[str, Any] = {}
"""What lies in the targets of sinks."""
SEEN_GLOBALLY: dict[str, int] = {}
NUMBERS = itertools.count(1)


def rows_of(env, splits=1):
    """The stream that all mistakes are made with; the rows of one split come in their order, whatever happens."""
    return env.from_source(CollectionSource.of_rows(ROWS, splits=splits), WATERMARKS, uid="rows")


def out(stream):
    """The sink of those whose mistake is elsewhere."""
    stream.sink_to(DiscardingSink(), uid="out")


# --- state outside of state -------------------------------------------------------------------------------------------


class CountsInADict(sl.KeyedProcessFunction):
    """Keeps counts in a dictionary on the function."""

    def __init__(self):
        self.counts: dict[str, int] = {}

    def process_element(self, row, context):
        self.counts[row["shop"]] = self.counts.get(row["shop"], 0) + 1
        yield {"shop": row["shop"], "count": self.counts[row["shop"]]}


def counts_globally(row):
    """Keeps counts in a dictionary of the module."""
    SEEN_GLOBALLY[row["shop"]] = SEEN_GLOBALLY.get(row["shop"], 0) + 1
    return {"shop": row["shop"], "is_first": SEEN_GLOBALLY[row["shop"]] == 1}


def numbers_globally(row):
    """Numbers rows by a counter of the module."""
    return {"n": row["n"], "number": next(NUMBERS)}


class KeepsInItsClass:
    """Keeps the largest row in an attribute of its class."""

    largest: ClassVar[dict[str, int]] = {}

    def __call__(self, row):
        self.largest[row["shop"]] = max(row["n"], self.largest.get(row["shop"], -1))
        return {"shop": row["shop"], "largest": self.largest[row["shop"]]}


class BuffersRows:
    """Hands on rows in pairs, and keeps the odd one on itself."""

    def __init__(self):
        self.buffer: list[dict[str, Any]] = []

    def __call__(self, row):
        self.buffer.append({"n": row["n"]})
        if len(self.buffer) == 3:
            yield from self.buffer
            self.buffer = []


class TimersOutside(sl.KeyedProcessFunction):
    """Keeps what is due in a dictionary, and looks at each row."""

    def open(self, context):
        self.due: dict[str, int] = {}
        self.last = context.get_state(sl.ValueStateDescriptor("last", pa.int64()))

    def process_element(self, row, context):
        self.last.update(row["n"])
        if row["shop"] not in self.due:
            self.due[row["shop"]] = row["t"] + 100
        elif row["t"] >= self.due[row["shop"]]:
            del self.due[row["shop"]]
            yield {"shop": row["shop"], "n": row["n"]}


class StaleCache(sl.KeyedProcessFunction):
    """Writes its cache back to state at every third change only."""

    def open(self, context):
        self.total = context.get_state(sl.ValueStateDescriptor("total", pa.int64()))
        self.cache: dict[str, int] = {}

    def process_element(self, row, context):
        total = self.cache.get(row["shop"], self.total.value() or 0) + row["n"]
        self.cache[row["shop"]] = total
        if row["n"] % 3 == 0:
            self.total.update(total)
        yield {"shop": row["shop"], "n": row["n"], "total": total}


class AccumulatesInOpen(sl.KeyedProcessFunction):
    """Loads a table in open() into what every attempt of the process shares."""

    rates: ClassVar[list[int]] = []

    def open(self, context):
        self.rates.append(10)
        self.seen = context.get_state(sl.ValueStateDescriptor("seen", pa.int64()))

    def process_element(self, row, context):
        self.seen.update(row["n"])
        yield {"n": row["n"], "costs": row["n"] * self.rates[-1] + len(self.rates) // 40}


class SumsAndCounts:
    """Snapshots its sum and its count, and restores the sum only."""

    def initialize_state(self, context):
        self.state = context.operator_state_store.get_list_state("sum")
        self.sum, self.count = 0, 0
        for one in self.state.get():
            self.sum += one["sum"]

    def snapshot_state(self, context):
        self.state.update([{"sum": self.sum, "count": self.count}])

    def __call__(self, batch):
        first, self.count = self.count, self.count + batch.num_rows
        return batch.append_column("is_late", pa.array([number >= 20 for number in range(first, self.count)]))


class TakesTheUnionForItsOwn:
    """Restores what all subtasks have counted as what it has counted itself."""

    def initialize_state(self, context):
        self.state = context.operator_state_store.get_union_list_state("counts")
        self.count = sum(self.state.get())

    def snapshot_state(self, context):
        self.state.update([self.count])

    def __call__(self, batch):
        first = self.count
        self.count += batch.num_rows
        return pa.RecordBatch.from_pydict({"number": list(range(first, self.count))})


class SeenInAList:
    """Lets each shop pass once; which it has seen lies in a list state, of which another subtask gets a part when the
    job is rescaled."""

    def initialize_state(self, context):
        self.state = context.operator_state_store.get_list_state("seen")
        self.seen = list(self.state.get())

    def snapshot_state(self, context):
        self.state.update(self.seen)

    def __call__(self, batch):
        shops = list(dict.fromkeys(shop for shop in batch.column("shop").to_pylist() if shop not in self.seen))
        self.seen += shops
        return pa.RecordBatch.from_pydict({"shop": shops}) if shops else None


# --- what is not a function of the input ------------------------------------------------------------------------------


class ByProcessingTime(sl.KeyedProcessFunction):
    """Says how many rows came within 50 ms of processing time."""

    def open(self, context):
        self.count = context.get_state(sl.ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row, context):
        if not self.count.value():
            service = context.timer_service
            service.register_processing_time_timer(service.current_processing_time() + 50)
        self.count.update((self.count.value() or 0) + 1)

    def on_timer(self, timestamp_ms, context):
        yield {"shop": context.current_key, "count": self.count.value()}
        self.count.clear()


class AsksForItsAttempt(sl.KeyedProcessFunction):
    """Does not greet again after a restart."""

    def open(self, context):
        self.is_first = context.attempt_number == 0
        self.seen = context.get_state(sl.ValueStateDescriptor("seen", pa.bool_()))

    def process_element(self, row, context):
        if not self.seen.value() and self.is_first:
            yield {"shop": row["shop"]}
        self.seen.update(True)


def through_a_set(row):
    """Numbers words in the order of a set."""
    words = {row["shop"], "north", "south", "east", "west"}
    return [{"n": row["n"], "place": place, "word": word} for place, word in enumerate(words)]


# --- sinks and sources ------------------------------------------------------------------------------------------------


class WritesAtOnce(sl.SinkFunction):
    """Writes each batch into its target."""

    def invoke(self, value):
        OUTSIDE.setdefault("rows", []).extend(value.to_pylist())


@dataclass
class Bank:
    """A target with transactions."""

    staged: dict[str, list[Any]] = field(default_factory=dict)
    visible: list[Any] = field(default_factory=list)


class Transactions(sl.TwoPhaseCommitSinkFunction):
    """A two-phase sink as it should be; those below break it in one place each."""

    @property
    def bank(self):
        return OUTSIDE.setdefault("bank", Bank())

    def begin_transaction(self):
        return uuid.uuid4().hex

    def invoke_transaction(self, transaction, value):
        self.bank.staged.setdefault(transaction, []).extend(value.to_pylist())

    def pre_commit(self, transaction):
        pass

    def commit(self, transaction):
        self.bank.visible.extend(self.bank.staged.pop(transaction, []))

    def abort(self, transaction):
        self.bank.staged.pop(transaction, None)


class CommitsInSnapshot(Transactions):
    """Commits at the barrier, and not when the checkpoint is complete."""

    def pre_commit(self, transaction):
        self.commit(transaction)


class CommitsTwice(Transactions):
    """Its commit adds the rows again if it is called again."""

    def commit(self, transaction):
        self.bank.visible.extend(self.bank.staged.get(transaction, []))


class ForgetsToRecover(Transactions):
    """Takes it for granted that what it has pre-committed was committed."""

    def recover_and_commit(self, transaction):
        self.bank.staged.pop(transaction, None)


class ReusesNames(Transactions):
    """Names transactions by nothing that differs between attempts."""

    def initialize_state(self, context):
        self.numbers = itertools.count()
        super().initialize_state(context)

    def begin_transaction(self):
        name = f"transaction-{next(self.numbers)}"
        self.bank.staged[name] = []
        return name


class SharesItsBuffer(sl.Sink):
    """Its committable is the writer's own list, which the writer goes on with."""

    def create_writer(self, context, restored):
        return SharedBuffer()

    def create_committer(self, context):
        return PublishRows()


class SharedBuffer(sl.SinkWriter):
    """The writer of SharesItsBuffer."""

    def __init__(self):
        self.rows: list[Any] = []
        self.ready: list[Any] = []

    def write(self, batch):
        self.rows += batch.to_pylist()

    def prepare_commit(self, checkpoint_id):
        self.ready[:], self.rows = self.rows, []
        return [sl.Committable({"id": uuid.uuid4().hex, "rows": self.ready})]


class PublishRows(sl.Committer):
    """The committer of SharesItsBuffer; idempotent."""

    def commit(self, committables):
        for one in committables:
            OUTSIDE.setdefault("published", {}).setdefault(one.data["id"], list(one.data["rows"]))


def notifies_outside(row):
    """Sends a message for each row, in the middle of the job."""
    OUTSIDE.setdefault("messages", []).append({"n": row["n"]})
    return row


class PublishesOnTrigger(sl.Source):
    """Keeps its position outside, and writes it when a checkpoint begins."""

    def schema(self):
        return pa.schema([("n", pa.int64())])

    def enumerate_splits(self):
        return [sl.SourceSplit("all")]

    def create_reader(self, context):
        return PublishingReader()


class PublishingReader(sl.SourceReader):
    """The reader of PublishesOnTrigger."""

    def add_splits(self, splits):
        self.splits = list(splits)
        self.position = OUTSIDE.get("offset", 0)
        self.resume_ms = 0

    def poll_next(self, now_ms):
        if not self.splits or self.position == 36:
            return sl.Polled(sl.InputStatus.END_OF_INPUT)
        if now_ms < self.resume_ms:
            return sl.Polled(sl.InputStatus.NOTHING_AVAILABLE, wake_at_ms=self.resume_ms)
        self.resume_ms = now_ms + 10
        self.position += 1
        return sl.Polled(sl.InputStatus.MORE_AVAILABLE, pa.RecordBatch.from_pydict({"n": [self.position]}))

    def snapshot_splits(self, checkpoint_id):
        if self.splits:
            OUTSIDE["offset"] = self.position
        return self.splits


# --- the list ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """One of them: the job, the operator that its story names, and what it says of it."""

    build: Callable[[Any], object]
    operator: str
    reason: str = ""
    outputs: dict[str, Callable[[], Any]] = field(default_factory=dict)


def mapped(function):
    return lambda env: out(rows_of(env).map(function, uid="wrong"))


def by_batches(make):
    return lambda env: out(rows_of(env).map_batches(make(), uid="wrong"))


def keyed(make):
    return lambda env: out(rows_of(env).key_by("shop").process(make(), uid="wrong"))


def into(make):
    return lambda env: rows_of(env).add_sink(make(), uid="wrong")


def bank_rows():
    return OUTSIDE.get("bank", Bank()).visible


BANK = {"wrong": bank_rows}

MISTAKES = {
    "a dictionary on the function": Mistake(keyed(CountsInADict), "wrong", "self.counts changes while rows come"),
    "a dictionary of the module": Mistake(mapped(counts_globally), "wrong", "the global SEEN_GLOBALLY changes"),
    "a counter of the module": Mistake(mapped(numbers_globally), "wrong", "the global NUMBERS changes"),
    "an attribute of the class": Mistake(
        mapped(KeepsInItsClass()), "wrong", "the class attribute KeepsInItsClass.largest"
    ),
    "a buffer that is not snapshotted": Mistake(
        lambda env: out(rows_of(env).flat_map(BuffersRows(), uid="wrong")), "wrong", "self.buffer changes"
    ),
    "timers kept outside": Mistake(keyed(TimersOutside), "wrong", "self.due changes"),
    "a cache that is staler than state": Mistake(keyed(StaleCache), "wrong", "self.cache changes"),
    "accumulating in open()": Mistake(keyed(AccumulatesInOpen), "wrong", "AccumulatesInOpen.rates"),
    "state that is restored in part": Mistake(
        by_batches(SumsAndCounts), "wrong", "look whether snapshot_state writes all of it"
    ),
    "a union list taken for one's own": Mistake(
        lambda env: out(rows_of(env, 2).map_batches(TakesTheUnionForItsOwn(), uid="wrong")), "wrong", "union list state"
    ),
    "state that is not keyed, after a rescale": Mistake(by_batches(SeenInAList), "wrong", "self.seen changes"),
    "time.time()": Mistake(mapped(lambda row: {"n": row["n"], "at": int(time.time())}), "wrong", "reads the clock"),
    "random numbers": Mistake(
        mapped(lambda row: {"n": row["n"], "lot": random.randrange(100)}), "wrong", "draws random numbers"
    ),
    "uuid4()": Mistake(mapped(lambda row: {"id": uuid.uuid4().hex}), "wrong", "draws a random id"),
    "hash() of a text": Mistake(
        mapped(lambda row: {"n": row["n"], "bucket": hash(row["shop"]) % 8}), "wrong", "calls hash()"
    ),
    "the order of a set": Mistake(
        lambda env: out(rows_of(env).flat_map(through_a_set, uid="wrong")), "wrong", "goes through a set"
    ),
    "processing time": Mistake(keyed(ByProcessingTime), "wrong", "processing time"),
    "the number of the attempt": Mistake(keyed(AsksForItsAttempt), "wrong", "asks which attempt it is"),
    "a sink that writes at once": Mistake(into(WritesAtOnce), "wrong", "it writes rows at once"),
    "a sink that commits in snapshot": Mistake(into(CommitsInSnapshot), "wrong", "only commit()", BANK),
    "a commit that is not idempotent": Mistake(into(CommitsTwice), "wrong", "once however often", BANK),
    "a recovery that does not commit": Mistake(into(ForgetsToRecover), "wrong", "pre_commit() has promised", BANK),
    "transactions whose names come again": Mistake(into(ReusesNames), "wrong", "its transactions", BANK),
    "a committable that shares the writer's list": Mistake(
        lambda env: rows_of(env).sink_to(SharesItsBuffer(), uid="wrong"),
        "wrong",
        "",
        {"wrong": lambda: [row for rows in OUTSIDE.get("published", {}).values() for row in rows]},
    ),
    "messages from the middle of the job": Mistake(
        mapped(notifies_outside), "", "", {"messages": lambda: OUTSIDE.get("messages", [])}
    ),
    "an offset published when a checkpoint begins": Mistake(
        lambda env: out(env.from_source(PublishesOnTrigger(), uid="wrong")), "wrong"
    ),
}
