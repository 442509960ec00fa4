"""What runs in simulated jobs: a source, sinks, and user functions, all deterministic in what they emit.

A row says where it came from (`s`: split, `i`: position in it), its key `k`, a value `v` and its event time `t`. The
outside world of source and sinks is a `Ledger` that outlives every process; functions find it by name, because a job is
pickled. Rows of split s are a function of (s, i) alone, so that the reference can be computed without running anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.api.connector_api import (
    Committable,
    Committer,
    Discovery,
    GlobalCommittable,
    GlobalCommitter,
    InputStatus,
    Polled,
    Sink,
    SinkWriter,
    Source,
    SourceContextInfo,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from snapline.dataflow.api.function_contexts import (
    BroadcastContext,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ProcessContext,
    Row,
    RuntimeContext,
    SourceContext,
    WindowContext,
)
from snapline.dataflow.api.functions import (
    AsyncFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    SourceFunction,
)
from snapline.dataflow.api.master_hooks import MasterTriggerRestoreHook, WithMasterCheckpointHook
from snapline.dataflow.api.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from snapline.dataflow.api.two_phase_commit import TwoPhaseCommitSinkFunction
from snapline.testing.simulated.world import Violation

SCHEMA = pa.schema([("s", pa.int32()), ("i", pa.int64()), ("k", pa.int64()), ("v", pa.int64()), ("t", pa.int64())])
BASE_TIME_MS = 1_000_000
TIME_STEP_MS = 10
HELD_BACK_MS = 50
"""After this, a reader that has nothing looks again."""

SimulatedRow = tuple[Any, ...]


class SimulatedUserError(RuntimeError):
    """What a user's function raises when the simulator says so."""


# --- the outside world ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Transaction:
    """Rows that a sink wrote, visible once committed."""

    transaction_id: str
    sink: str
    checkpoint_id: int
    """Whose barrier closed it."""
    rows: list[SimulatedRow]
    committed: bool = False
    commits: int = 0
    aborted: bool = False
    together: tuple[str, str, int] | None = None
    """Job, sink and checkpoint under which it was committed with others."""


class SourceWatch(Protocol):
    """Oracle: how far each attempt of a source subtask is. Watermarks are those that the rows so far promise, None
    before the first."""

    def opened(self, attempt: str, splits: Mapping[str, int | None]) -> None:
        """It begins with these unfinished splits."""
        ...

    def reads(self, attempt: str, split_id: str) -> None:
        """It is about to."""
        ...

    def has_read(self, attempt: str, split_id: str, watermark_ms: int | None) -> None:
        """It has; None: to the end."""
        ...


class HookWatch(Protocol):
    """Oracle: what master hooks are called for."""

    def triggered(self, checkpoint_id: int) -> bytes:
        """It answers this."""
        ...

    def restored(self, checkpoint_id: int, state: bytes | None) -> None:
        """It gets this back. 0: there is nothing to go on from."""
        ...


@dataclass
class Ledger:
    """The outside systems of one run."""

    transactions: dict[str, Transaction] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    next_number: int = 0
    user_fails: Callable[[str], bool] = lambda where: False
    """Whether a user's function raises at this call."""
    commit_fault: Callable[[str], str] = lambda transaction_id: ""
    """`before` or `after`: the commit fails there."""
    may_commit: Callable[[Transaction], None] = lambda transaction: None
    """Oracle: raises when nothing complete covers the transaction."""
    published: Callable[[int], None] = lambda checkpoint_id: None
    """Oracle: a source was told of this checkpoint's completion."""
    pause_ms: int = 0
    """Sources pause up to so long between batches."""
    sources: SourceWatch | None = None
    hooks: HookWatch | None = None
    hook_states: dict[int, list[bytes]] = field(default_factory=dict)
    """By checkpoint: what the master hook said, once for each leader that asked it."""
    positions: dict[int, dict[int, int]] = field(default_factory=dict)
    """By checkpoint: how many rows of each split stand before its barrier, where the split's subtask still ran."""
    is_held_back: bool = False
    """The last row of each split comes only when this is over."""

    def stage(self, sink: str, checkpoint_id: int, rows: list[SimulatedRow]) -> str:
        self.next_number += 1
        transaction_id = f"{sink}-{self.next_number}"
        self.transactions[transaction_id] = Transaction(transaction_id, sink, checkpoint_id, rows)
        return transaction_id

    def commit(self, transaction_id: str) -> None:
        transaction = self.transactions[transaction_id]
        fault = self.commit_fault(transaction_id)
        if fault == "before":
            raise SimulatedUserError(f"commit of {transaction_id} fails before it is done")
        self.may_commit(transaction)
        transaction.committed = True
        transaction.commits += 1
        if fault == "after":
            raise SimulatedUserError(f"commit of {transaction_id} fails after it is done")

    def last_committed(self, job_id: str, sink_uid: str) -> int | None:
        of_sink = [
            t.together[2] for t in self.transactions.values() if t.together and t.together[:2] == (job_id, sink_uid)
        ]
        return max(of_sink, default=None)

    def commit_together(self, together: GlobalCommittable) -> None:
        """All or none, as a database with a note of the checkpoint would; oracle: each once, and in order."""
        ids = [committable.data["transaction"] for committable in together.committables]
        fault = self.commit_fault(ids[0])
        if fault == "before":
            raise SimulatedUserError(f"commit of {ids} fails before it is done")
        last = self.last_committed(together.job_id, together.sink_uid)
        if last is not None and together.checkpoint_id <= last:
            return
        for transaction_id in ids:
            transaction = self.transactions[transaction_id]
            if transaction.committed:
                raise Violation(f"{transaction_id} is committed again, with checkpoint {together.checkpoint_id}")
            if last is not None and transaction.checkpoint_id <= last:
                raise Violation(f"{transaction_id} of checkpoint {transaction.checkpoint_id} is committed after {last}")
            self.may_commit(transaction)
            transaction.committed = True
            transaction.commits += 1
            transaction.together = (together.job_id, together.sink_uid, together.checkpoint_id)
        if fault == "after":
            raise SimulatedUserError(f"commit of {ids} fails after it is done")

    def committed_rows(self, sink: str) -> list[SimulatedRow]:
        return [row for t in self.transactions.values() if t.sink == sink and t.committed for row in t.rows]


LEDGERS: dict[str, Ledger] = {}
"""By name of the run; whoever makes one takes it out again."""


# --- source -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitPlan:
    """One split: how many rows, and how their keys are drawn."""

    split: int
    rows: int
    keys: int
    own_keys: bool
    """Keys of this split occur in no other: then a key's rows keep their order wherever the split's do."""
    splits: int

    def row(self, index: int) -> SimulatedRow:
        mixed = (index * 2654435761 + self.split * 40503) & 0xFFFFFFFF
        key = (mixed >> 7) % self.keys
        if self.own_keys:
            key = key * self.splits + self.split
        return (self.split, index, key, (mixed >> 3) % 100, self.time_ms(index))

    def time_ms(self, index: int) -> int:
        """Event time of a row."""
        return BASE_TIME_MS + index * TIME_STEP_MS + self.split

    def watermark_ms(self, rows: int) -> int | None:
        """What so many rows promise."""
        return self.time_ms(rows - 1) - 1 if rows else None


class SimulatedSource(Source):
    """Bounded; reads whole splits in turns, with pauses."""

    def __init__(self, world: str, plans: Sequence[SplitPlan], batch_rows: int) -> None:
        self.world = world
        self.plans = tuple(plans)
        self.batch_rows = batch_rows

    def schema(self) -> pa.Schema:
        return SCHEMA

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return [SourceSplit(f"split-{plan.split}", {"number": n}) for n, plan in enumerate(self.plans)]

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return SimulatedReader(self, LEDGERS[self.world], context.execution_attempt)


class DiscoveringSource(SimulatedSource):
    """The same, whose splits are found one or two at a time while the job runs."""

    def __init__(
        self, world: str, plans: Sequence[SplitPlan], batch_rows: int, at_once: int | None, *, timed: bool
    ) -> None:
        """`timed`: the least event time of each split is known."""
        super().__init__(world, plans, batch_rows)
        self.at_once, self.timed = at_once, timed

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return []

    def create_enumerator(self, splits: Sequence[SourceSplit]) -> SplitEnumerator:
        return SimulatedEnumerator(self)

    @property
    def splits_at_once(self) -> int | None:
        return self.at_once


class SimulatedEnumerator(SplitEnumerator):
    """Finds the splits in order; a look finds none, one or two, and sometimes fails."""

    def __init__(self, source: DiscoveringSource) -> None:
        self._source = source
        self._ledger = LEDGERS[source.world]

    def discover(self, state: dict[str, Any]) -> Discovery:
        if self._ledger.user_fails("discover"):
            raise SimulatedUserError("the listing fails")
        plans = self._source.plans
        begin = state.get("next", 0)
        end = min(begin + self._ledger.rng.randint(0, 2), len(plans))
        times = {"t"} if self._source.timed else set()
        found = [
            SourceSplit(
                f"split-{plans[n].split}", {"number": n}, least_times_ms=dict.fromkeys(times, plans[n].time_ms(0))
            )
            for n in range(begin, end)
        ]
        return Discovery(
            found, {"next": end}, finished=end == len(plans), again_after_ms=self._ledger.rng.randint(0, 300)
        )


class HookedSource(SimulatedSource, WithMasterCheckpointHook):
    """The same, with something in the outside world that belongs to all of its subtasks."""

    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[Any]:
        return SubscriptionHook(LEDGERS[self.world])


class SubscriptionHook(MasterTriggerRestoreHook[bytes]):
    """Every checkpoint gets a state that no other has."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def identifier(self) -> str:
        return "subscription"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp_ms: int) -> bytes | None:
        self._may_fail()
        return None if self._ledger.hooks is None else self._ledger.hooks.triggered(checkpoint_id)

    def restore_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        self._may_fail()
        if self._ledger.hooks is not None:
            self._ledger.hooks.restored(checkpoint_id, state)

    def reset(self) -> None:
        self._may_fail()
        if self._ledger.hooks is not None:
            self._ledger.hooks.restored(0, None)

    def _may_fail(self) -> None:
        if self._ledger.user_fails("master hook"):
            raise SimulatedUserError("the master hook does not like it")


class SimulatedReader(SourceReader):
    """The position of a split is the number of rows emitted."""

    def __init__(self, source: SimulatedSource, ledger: Ledger, attempt: str) -> None:
        self._source = source
        self._ledger = ledger
        self._attempt = attempt
        self._watch = ledger.sources
        self._splits: list[SourceSplit] = []
        self._positions: dict[str, int] = {}
        self._finished: set[str] = set()
        self._paused: frozenset[str] = frozenset()
        self._turn = 0
        self._resume_at_ms: int | None = None

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._splits += splits
        for split in splits:
            self._positions[split.split_id] = int(split.position.get("rows", 0))
            if split.finished:
                self._finished.add(split.split_id)
        if self._watch is not None:
            unfinished = [split for split in splits if not split.finished]
            self._watch.opened(self._attempt, {split.split_id: self._watermark_ms(split) for split in unfinished})

    def pause_splits(self, split_ids: Sequence[str]) -> None:
        self._paused = frozenset(split_ids)

    def _watermark_ms(self, split: SourceSplit) -> int | None:
        return self._plan(split).watermark_ms(self._positions[split.split_id])

    def _plan(self, split: SourceSplit) -> SplitPlan:
        return self._source.plans[split.description["number"]]

    def poll_next(self, now_ms: int) -> Polled:
        if self._resume_at_ms is not None:
            if now_ms < self._resume_at_ms:
                return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=self._resume_at_ms)
            self._resume_at_ms = None
        for _ in self._splits:
            split = self._splits[self._turn % len(self._splits)]
            self._turn += 1
            if split.split_id not in self._finished and split.split_id not in self._paused and self._may_read(split):
                return self._read(split, now_ms)
        if all(split.split_id in self._finished for split in self._splits):
            return Polled(InputStatus.END_OF_INPUT)
        return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=now_ms + HELD_BACK_MS)

    def _may_read(self, split: SourceSplit) -> bool:
        return not self._ledger.is_held_back or self._positions[split.split_id] < self._plan(split).rows - 1

    def _read(self, split: SourceSplit, now_ms: int) -> Polled:
        plan = self._plan(split)
        if self._watch is not None:
            self._watch.reads(self._attempt, split.split_id)
        begin = self._positions[split.split_id]
        end = min(plan.rows - self._ledger.is_held_back, begin + self._ledger.rng.randint(1, self._source.batch_rows))
        self._positions[split.split_id] = end
        ended: tuple[str, ...] = ()
        if end == plan.rows:
            self._finished.add(split.split_id)
            ended = (split.split_id,)
        if self._watch is not None:
            self._watch.has_read(self._attempt, split.split_id, None if ended else self._watermark_ms(split))
        if self._ledger.pause_ms:
            self._resume_at_ms = now_ms + self._ledger.rng.randint(0, self._ledger.pause_ms)
        if begin == end:
            return Polled(InputStatus.MORE_AVAILABLE, finished_splits=ended)
        return Polled(
            InputStatus.MORE_AVAILABLE,
            batch_of([plan.row(index) for index in range(begin, end)]),
            split_id=split.split_id,
            finished_splits=ended,
        )

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        positions = self._ledger.positions.setdefault(checkpoint_id, {})
        positions.update({self._plan(split).split: self._positions[split.split_id] for split in self._splits})
        return [
            SourceSplit(
                split.split_id,
                split.description,
                {"rows": self._positions[split.split_id]},
                split.split_id in self._finished,
            )
            for split in self._splits
        ]

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._ledger.published(checkpoint_id)


class PushingSource(SourceFunction):
    """The splits of its subtask in turns, row by row. Every subtask restores the positions of all."""

    def __init__(self, world: str, plans: Sequence[SplitPlan], rows_per_watermark: int) -> None:
        self.world = world
        self.plans = tuple(plans)
        self.rows_per_watermark = rows_per_watermark
        self.positions: dict[int, int] = {}
        self.running = True

    def open(self, context: RuntimeContext) -> None:
        mine = self.plans[context.subtask_index :: context.parallelism]
        self.positions = {plan.split: self.positions.get(plan.split, 0) for plan in mine}
        self.mine = mine

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.state = context.operator_state_store.get_union_list_state("positions")
        self.positions = dict(self.state.get())

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        LEDGERS[self.world].positions.setdefault(context.checkpoint_id, {}).update(self.positions)
        self.state.update([[split, rows] for split, rows in self.positions.items()])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        LEDGERS[self.world].published(checkpoint_id)

    def run(self, context: SourceContext) -> None:
        emitted = 0
        while self.running and (unfinished := self._unfinished()):
            for plan in unfinished:
                if LEDGERS[self.world].user_fails("push source"):
                    raise SimulatedUserError("the source has had enough")
                with context.get_checkpoint_lock():
                    row = plan.row(self.positions[plan.split])
                    self.positions[plan.split] += 1
                    context.collect(dict(zip(SCHEMA.names, row, strict=True)))
                emitted += 1
                if emitted % self.rows_per_watermark == 0:
                    self._say_how_far(context)

    def _unfinished(self) -> list[SplitPlan]:
        return [plan for plan in self.mine if self.positions[plan.split] < plan.rows]

    def _say_how_far(self, context: SourceContext) -> None:
        promised = [plan.watermark_ms(self.positions[plan.split]) for plan in self._unfinished()]
        known = [ms for ms in promised if ms is not None]
        if known and len(known) == len(promised):
            context.emit_watermark(min(known))

    def cancel(self) -> None:
        self.running = False


def batch_of(rows: Sequence[SimulatedRow]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(list(column), f.type) for column, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)], schema=SCHEMA)  # fmt: skip


def rows_of(batch: pa.RecordBatch) -> list[SimulatedRow]:
    """As tuples of plain values; times as milliseconds."""
    columns = [
        (pc.cast(column, pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in batch.columns
    ]
    return list(zip(*columns, strict=True))


# --- sinks ------------------------------------------------------------------------------------------------------------


class LedgerSink(Sink):
    """Two-phase: a transaction per barrier."""

    def __init__(self, world: str, name: str) -> None:
        self.world = world
        self.name = name

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return LedgerWriter(LEDGERS[self.world], self.name)

    def create_committer(self, context: SourceContextInfo) -> Committer:
        return LedgerCommitter(LEDGERS[self.world])


class TogetherSink(LedgerSink):
    """The same with one committer for all subtasks."""

    @property
    def commits_together(self) -> bool:
        return True

    def create_global_committer(self, context: SourceContextInfo) -> GlobalCommitter:
        return TogetherCommitter(LEDGERS[self.world])


class TogetherCommitter(GlobalCommitter):
    """Hands everything to the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def last_committed(self, job_id: str, sink_uid: str) -> int | None:
        return self._ledger.last_committed(job_id, sink_uid)

    def commit(self, together: GlobalCommittable) -> None:
        self._ledger.commit_together(together)


class LedgerWriter(SinkWriter):
    """Buffers."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger = ledger
        self._name = name
        self._rows: list[SimulatedRow] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += rows_of(batch)

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        if not self._rows:
            return ()
        rows, self._rows = self._rows, []
        return [Committable({"transaction": self._ledger.stage(self._name, checkpoint_id, rows)})]


class LedgerCommitter(Committer):
    """Idempotent."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def commit(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            self._ledger.commit(committable.data["transaction"])


class LedgerTransactions(TwoPhaseCommitSinkFunction):
    """The same with transactions that are open between barriers."""

    def __init__(self, world: str, name: str) -> None:
        super().__init__(clock_ms=_no_clock)
        self.world = world
        self.name = name

    def begin_transaction(self) -> Any:
        return LEDGERS[self.world].stage(self.name, 0, [])

    def invoke_transaction(self, transaction: Any, value: Any) -> None:
        LEDGERS[self.world].transactions[transaction].rows += rows_of(value)

    def pre_commit(self, transaction: Any) -> None:
        """Everything is in the ledger already."""

    def snapshot_state(self, context: Any) -> None:
        if self.current_transaction is not None:
            LEDGERS[self.world].transactions[self.current_transaction].checkpoint_id = context.checkpoint_id
        super().snapshot_state(context)

    def commit(self, transaction: Any) -> None:
        LEDGERS[self.world].commit(transaction)

    def abort(self, transaction: Any) -> None:
        aborted = LEDGERS[self.world].transactions[transaction]
        if not aborted.committed:
            aborted.aborted = True


def _no_clock() -> int:
    return 0


# --- user functions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddOne:
    """Vectorised map; may raise."""

    world: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if LEDGERS[self.world].user_fails("map"):
            raise SimulatedUserError("the user's function does not like this batch")
        return batch.set_column(3, SCHEMA.field("v"), pc.add(batch.column(3), 1))


@dataclass(frozen=True)
class DropSome:
    """Vectorised filter."""

    modulus: int

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        numbers = batch.column(1)
        quotient = pc.multiply(pc.divide(numbers, self.modulus), self.modulus)
        return pc.not_equal(numbers, quotient)


class Ask(AsyncFunction):
    """What the outside says is what `AddOne` says; a row that it takes too long for gets the same from elsewhere."""

    def __init__(self, world: str, unanswered: float = 0) -> None:
        """`unanswered`: share of the rows for which `async_invoke` never returns (`async_calls`)."""
        self.world = world
        self.unanswered = unanswered

    async def async_invoke(self, row: Row) -> Iterable[Row]:
        if LEDGERS[self.world].user_fails("ask"):
            raise SimulatedUserError("nobody answers")
        return self.timeout(row)

    def timeout(self, row: Row) -> Iterable[Row]:
        return [{**row, "v": row["v"] + 1}]


class Twice:
    """Row-wise flat map: i becomes 2i and 2i + 1."""

    def __call__(self, row: Row) -> Iterable[Row]:
        yield {**row, "i": row["i"] * 2}
        yield {**row, "i": row["i"] * 2 + 1}


PROCESS_SCHEMA = pa.schema(
    [("kind", pa.int32()), ("k", pa.int64()), ("n", pa.int64()), ("s", pa.int32()), ("i", pa.int64())]
)


FOR_EVER_MS = 2**62
LAST_TIMER_MS = 2**40
"""Event time after that of all rows."""
SIDE = "even"
"""Tag of the side output: rows with an even value."""


class CountWithTimers(KeyedProcessFunction):
    """Numbers the rows of each key, says when a bucket of event time is over, and repeats each row after a while by the
    clock, at the latest at the end. Times by the clock are odd, buckets end at even ones."""

    def __init__(self, world: str, bucket_ms: int, state: str, *, side: bool, repeat_ms: int) -> None:
        """`repeat_ms`: 0: rows are not repeated."""
        self.repeat_ms = repeat_ms
        self.world = world
        self.bucket_ms = bucket_ms
        self.state = state
        self.side = side

    def open(self, context: RuntimeContext) -> None:
        match self.state:
            case "value":
                self._value = context.get_state(ValueStateDescriptor("count", pa.int64()))
            case "list":
                self._list = context.get_list_state(ListStateDescriptor("seen", pa.int64()))
            case "map":
                self._map = context.get_map_state(MapStateDescriptor("per-split", pa.int32(), pa.int64()))
            case _:
                self._reducing = context.get_reducing_state(ReducingStateDescriptor("sum", _add, pa.int64()))
        if self.repeat_ms:
            self._repeated = context.get_map_state(MapStateDescriptor("repeated", pa.string(), pa.int64()))
            self._found_due_ms: dict[str, int] = {}

    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Row]:
        if LEDGERS[self.world].user_fails("process"):
            raise SimulatedUserError("the user's function does not like this row")
        bucket_end = (row["t"] // self.bucket_ms + 1) * self.bucket_ms
        context.timer_service.register_event_time_timer(bucket_end)
        if self.side and row["v"] % 2 == 0:
            context.output(SIDE, {"k": row["k"], "s": row["s"], "i": row["i"]})
        yield {"kind": 0, "k": row["k"], "n": self._next(row), "s": row["s"], "i": row["i"]}
        if self.repeat_ms:
            yield from self._repeat_later(row, context)

    def _repeat_later(self, row: Row, context: ProcessContext) -> Iterable[Row]:
        timers = context.timer_service
        now_ms = timers.current_processing_time()
        for name, waiting in self._due(3, context.current_key, now_ms):
            # one batch may come before a timer that became due while others fired
            if self._found_due_ms.setdefault(name, now_ms) < now_ms:
                yield waiting
        due_ms = (now_ms + self.repeat_ms) | 1
        self._repeated.put(f"{row['s']}/{row['i']}", due_ms)
        timers.register_processing_time_timer(due_ms)
        timers.register_event_time_timer(LAST_TIMER_MS)

    def _due(self, kind: int, key: int, until_ms: int) -> Iterable[tuple[str, Row]]:
        for name in sorted(name for name, due_ms in self._repeated.items() if due_ms <= until_ms):
            split, index = name.split("/")
            yield name, {"kind": kind, "k": key, "n": 0, "s": int(split), "i": int(index)}

    def on_timer(self, timestamp_ms: int, context: ProcessContext) -> Iterable[Row]:
        if timestamp_ms % 2 or timestamp_ms == LAST_TIMER_MS:
            until_ms = timestamp_ms if timestamp_ms % 2 else FOR_EVER_MS
            for name, row in self._due(2, context.current_key, until_ms):
                self._repeated.remove(name)
                yield row
            return
        yield {"kind": 1, "k": context.current_key, "n": timestamp_ms, "s": -1, "i": -1}

    def _next(self, row: Row) -> int:
        match self.state:
            case "value":
                n = (self._value.value() or 0) + 1
                self._value.update(n)
                return n
            case "list":
                self._list.add(row["i"])
                return len(self._list.get())
            case "map":
                self._map.put(row["s"], (self._map.get(row["s"]) or 0) + 1)
                return sum(self._map.get(split) for split, _ in self._map.items())
            case _:
                self._reducing.add(1)
                return int(self._reducing.get())


class PassOn(KeyedProcessFunction):
    """Changes nothing, so that what is behind it is behind an operator over keys."""

    def __init__(self, world: str) -> None:
        self.world = world

    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Row]:
        if LEDGERS[self.world].user_fails("pass"):
            raise SimulatedUserError("the user's function does not like this row")
        yield row


class SumOfWindow(ProcessWindowFunction):
    """What the aggregates say, from the rows."""

    def __init__(self, world: str) -> None:
        self.world = world

    def process(self, key: Any, context: WindowContext, rows: Sequence[Row]) -> Iterable[Row]:
        if LEDGERS[self.world].user_fails("window"):
            raise SimulatedUserError("the user's function does not like this window")
        start_ms, end_ms = context.window.start_ms, context.window.end_ms
        total = sum(row["v"] for row in rows)
        yield {"k": key, "window_start": start_ms, "window_end": end_ms, "n": len(rows), "total": total}


RULES = MapStateDescriptor("rules", pa.int64(), pa.int64())
SPLIT_RADIX = 1_000_000
"""A row of the first source as one number: split * this + position."""


class CountRules(KeyedBroadcastProcessFunction):
    """Numbers the rows of each key, keeps every row of the broadcast input, and at the end says for each key what it
    knows of these: how many (`i`), and the sum of what they say (`n`)."""

    def __init__(self, world: str) -> None:
        self.world = world

    def open(self, context: RuntimeContext) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, row: Row, context: BroadcastContext) -> Iterable[Row]:
        if LEDGERS[self.world].user_fails("rules"):
            raise SimulatedUserError("the user's function does not like this row")
        n = (self._count.value() or 0) + 1
        self._count.update(n)
        context.timer_service.register_event_time_timer(LAST_TIMER_MS)
        yield {"kind": 0, "k": row["k"], "n": n, "s": row["s"], "i": row["i"]}

    def process_broadcast_element(self, row: Row, context: BroadcastContext) -> None:
        context.get_broadcast_state(RULES)[row["s"] * SPLIT_RADIX + row["i"]] = row["v"]

    def on_timer(self, timestamp_ms: int, context: BroadcastContext) -> Iterable[Row]:
        rules = context.get_broadcast_state(RULES)
        yield {"kind": 1, "k": context.current_key, "n": sum(rules.values()), "s": -1, "i": len(rules)}


def _add(left: int, right: int) -> int:
    return left + right
