"""What job a seed runs: its shape, drawn at random, and what it must put out, computed with dictionaries.

One or two sources, some stateless operators, perhaps a keyed one, a sink; perhaps a second branch from the first source
straight to a sink of its own. Every kind of edge occurs. The reference knows nothing of batches, parallelism,
watermarks or checkpoints: it maps the rows of all splits and groups them.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from snapline.dataflow.api.watermarks import WatermarkAlignmentParams, WatermarkStrategy
from snapline.dataflow.api.windows import (
    Aggregate,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from snapline.dataflow.config import Configuration
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.graph.operator_specs import (
    AsyncSpec,
    CoProcessSpec,
    FilterSpec,
    FlatMapRowsSpec,
    GlobalCommitterSpec,
    IntervalJoinSpec,
    JoinSide,
    KeyedProcessSpec,
    MapBatchesSpec,
    OperatorSpec,
    RunningAggregateSpec,
    SinkFunctionSpec,
    SinkSpec,
    SinkWriterSpec,
    SourceFunctionSpec,
    SourceSpec,
    TemporalJoinSpec,
    WatermarkSpec,
    WindowAggregateSpec,
    WindowJoinSpec,
    WindowProcessSpec,
)
from snapline.dataflow.graph.stream_graph import StreamEdge, StreamGraph, add_fed_source
from snapline.dataflow.graph.translation import translate
from snapline.dataflow.ids import JobID
from snapline.dataflow.partitioning import Partitioning
from tests.simulation.workload import (
    PROCESS_SCHEMA,
    RULES,
    SCHEMA,
    SIDE,
    AddOne,
    Ask,
    CountRules,
    CountWithTimers,
    DiscoveringSource,
    DropSome,
    HookedSource,
    LedgerSink,
    LedgerTransactions,
    PassOn,
    PushingSource,
    SimulatedRow,
    SimulatedSource,
    SplitPlan,
    SumOfWindow,
    TogetherSink,
    Twice,
)

DROP_MODULUS = 3
LATE = "late"
"""Tag of the side output: rows that came too late for their window."""
TUMBLING = ("window", "window rows")
WINDOWED = (*TUMBLING, "session")
SLIDES = 3
"""Windows that slide begin so often while one lasts."""
JOINS = ("join", "window join", "temporal join")
KEEP_ROWS = (*JOINS, "window rows")
"""Of which the columns must not change."""
SESSION_GAP_MS = 25
SIDE_OF_JOIN = JoinSide(("k",), "t", SCHEMA)
JOINED = pa.schema([*SCHEMA, *(field.with_name(f"right_{field.name}") for field in SCHEMA)])
JOINED_BETWEEN_MS = (-10, 20)
"""The right row's time minus the left row's."""


@dataclass(frozen=True)
class Stage:
    """An operator before the last one, and the edge into it."""

    kind: str
    """map, filter, twice, ask (in order), ask any, watermarks (instead of those of the sources), pass (over keys)."""
    partitioning: Partitioning | None
    parallelism: int
    capacity: int = 0
    """Of requests at a time."""
    timeout_ms: int = 0
    unanswered: float = 0
    """Share of the requests that nobody ever answers."""
    bound_ms: int = 0
    """By which rows may be late for watermarks; rows of several splits are later than that."""


@dataclass(frozen=True)
class JobPlan:
    """One job."""

    sources: tuple[tuple[SplitPlan, ...], ...]
    source_parallelism: tuple[int, ...]
    batch_rows: int
    stages: tuple[Stage, ...]
    keyed: str
    """none, running, window, window rows (with a function), sliding, session, process; with the rows of the first
    source: one of JOINS, or rules (which these are, in broadcast state)."""
    process_state: str
    keyed_parallelism: int
    sink_kind: str
    """committer, function, together."""
    sink_parallelism: int
    sink_partitioning: Partitioning | None
    raw_branch: bool
    raw_sink_parallelism: int
    bucket_ms: int
    max_parallelism: int
    chaining: bool
    side_parallelism: int = 0
    """Of the sink of the keyed process function's side output; 0: there is none."""
    alignment: WatermarkAlignmentParams | None = None
    """Of all sources."""
    repeat_ms: int = 0
    """After this, by the clock, the keyed process function repeats a row; 0: it does not."""
    hooked: bool = False
    """The first source has a master hook."""
    second_edge: Partitioning | None = None
    """Of the second source to the first stage, where it is another than that of the first source."""
    pushed_rows: int = 0
    """The first source has a thread of its own, and says so often how far its event time is; 0: it is asked for rows,
    as the others."""

    discovered: int = 0
    """The splits of the first source are found while the job runs, and its readers have so many at once; -1: all."""
    discovered_timed: bool = False
    """Their least event times are known."""

    @property
    def slots(self) -> int:
        """With slot sharing: as many as the widest vertex."""
        return max(
            *self.source_parallelism,
            *(stage.parallelism for stage in self.stages),
            self.keyed_parallelism if self.keyed != "none" else 1,
            self.sink_parallelism,
            self.raw_sink_parallelism if self.raw_branch else 1,
            self.side_parallelism,
        )

    @property
    def has_late_rows(self) -> bool:
        """Whether rows may come after the watermark that they are of."""
        return any(stage.kind == "watermarks" for stage in self.stages)

    @property
    def rows(self) -> int:
        """Of all splits."""
        return sum(plan.rows for plans in self.sources for plan in plans)

    @property
    def keeps_key_order(self) -> bool:
        """Whether the rows of a key come to the keyed operator in the order of their split."""
        if self.second_edge or any(
            stage.capacity for stage in self.stages
        ):  # what is under way goes anywhere when the job is rescaled
            return False
        return all(plan.own_keys for plans in self.sources for plan in plans) and all(
            stage.partitioning in (None, Partitioning.FORWARD, Partitioning.HASH) and self._is_forward(index)
            for index, stage in enumerate(self.stages)
        )

    def _is_forward(self, index: int) -> bool:
        """An edge without a partitioning is forward only where the parallelism is equal."""
        stage = self.stages[index]
        before = self.source_parallelism if index == 0 else (self.stages[index - 1].parallelism,)
        return stage.partitioning is Partitioning.HASH or all(p == stage.parallelism for p in before)

    def describe(self) -> str:
        stages = "".join(
            f" -{_edge_name(stage.partitioning)}-> {stage.kind}x{stage.parallelism}" for stage in self.stages
        )
        keyed = "" if self.keyed == "none" else f" -hash-> {self.keyed_name}x{self.keyed_parallelism}"
        sources = " + ".join(
            f"source x{p} ({len(plans)} splits of {sum(plan.rows for plan in plans)} rows, {plans[0].keys} keys"
            f"{' each' if plans[0].own_keys else ''})"
            for plans, p in zip(self.sources, self.source_parallelism, strict=True)
        )
        sink = f" -{_edge_name(self.sink_partitioning)}-> {self.sink_kind}x{self.sink_parallelism}"
        raw = f", raw sink x{self.raw_sink_parallelism}" if self.raw_branch else ""
        raw += f", side sink x{self.side_parallelism}" if self.side_parallelism else ""
        raw += ", master hook" if self.hooked else ""
        raw += ", the first source pushes" if self.pushed_rows else ""
        if self.discovered:
            raw += f", the first source discovers, {self.discovered} splits at once, times {self.discovered_timed}"
        raw += f", the second source -{self.second_edge.value}->" if self.second_edge else ""
        if self.alignment is not None:
            raw += f", sources {self.alignment.max_drift_ms} ms apart, looked after every {self.alignment.update_interval_ms} ms"
        return (
            f"{sources}{stages}{keyed}{sink}{raw}; batches of {self.batch_rows}, max parallelism {self.max_parallelism}, "
            f"chaining {'on' if self.chaining else 'off'}"
        )

    @property
    def keyed_name(self) -> str:
        repeats = f", repeats after {self.repeat_ms} ms" if self.repeat_ms else ""
        return f"process({self.process_state}{repeats})" if self.keyed == "process" else self.keyed


def _edge_name(partitioning: Partitioning | None) -> str:
    return "auto" if partitioning is None else partitioning.value


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw_job(rng: random.Random, *, allow_broadcast: bool) -> JobPlan:
    """A job from a generator."""
    max_parallelism = rng.choice([4, 7, 16, 128])
    parallelism = lambda: rng.choice([1, 1, 2, 2, 3])  # noqa: E731
    own_keys = rng.random() < 0.5
    split_counts = [rng.randint(1, 4) for _ in range(1 if rng.random() < 0.7 else 2)]
    total = sum(split_counts)
    keys = rng.choice([1, 3, 8, 20])
    sources = []
    number = 0
    for count in split_counts:
        plans = []
        for _ in range(count):
            plans.append(SplitPlan(number, _draw_rows(rng, total), keys, own_keys, total))
            number += 1
        sources.append(tuple(plans))
    choices: list[Partitioning | None] = [None, None, Partitioning.REBALANCE, Partitioning.RESCALE, Partitioning.HASH]
    if allow_broadcast:
        choices.append(Partitioning.BROADCAST)
    stages = tuple(
        Stage(rng.choice(["map", "map", "filter", "twice"]), rng.choice(choices), parallelism())
        for _ in range(rng.randint(0, 2))
    )
    keyed = rng.choice(["none", "running", "running", "window", "process", "process"])
    return JobPlan(
        sources=tuple(sources),
        source_parallelism=tuple(parallelism() for _ in sources),
        batch_rows=rng.choice([1, 3, 8]),
        stages=stages,
        keyed=keyed,
        process_state=rng.choice(["value", "list", "map", "reducing"]),
        keyed_parallelism=parallelism(),
        sink_kind=rng.choice(["committer", "committer", "function"]),
        sink_parallelism=parallelism(),
        sink_partitioning=rng.choice([None, None, Partitioning.REBALANCE, Partitioning.RESCALE]),
        raw_branch=rng.random() < 0.25,
        raw_sink_parallelism=parallelism(),
        bucket_ms=rng.choice([50, 170, 1000]),
        max_parallelism=max_parallelism,
        chaining=rng.random() < 0.7,
    )


def _draw_rows(rng: random.Random, splits: int) -> int:
    """Few rows in all, so that many seeds can be run; some splits are empty."""
    return 0 if rng.random() < 0.05 else rng.randint(8, max(16, 200 // splits))


def until(plan: JobPlan, positions: Mapping[int, int]) -> JobPlan:
    """The same job, whose splits end there; those that are not named are whole."""
    cut = tuple(
        tuple(replace(split, rows=positions.get(split.split, split.rows)) for split in splits)
        for splits in plan.sources
    )
    return replace(plan, sources=cut)


def with_other_parallelism(plan: JobPlan, rng: random.Random) -> JobPlan:
    """The same job, rescaled. The first edge decides what forward means, so automatic edges stay automatic."""
    draw = lambda: rng.choice([1, 2, 3, 4])  # noqa: E731
    return replace(
        plan,
        source_parallelism=tuple(draw() for _ in plan.sources),
        stages=tuple(replace(stage, parallelism=draw()) for stage in plan.stages),
        keyed_parallelism=draw(),
        sink_parallelism=draw(),
        raw_sink_parallelism=draw(),
    )


# --- building ---------------------------------------------------------------------------------------------------------


def build(plan: JobPlan, world: str, configuration: dict[str, str], job_id: JobID) -> JobGraph:
    """The job, through the product's own translation."""
    graph = StreamGraph()
    settings = {
        **configuration,
        "pipeline.max-parallelism": str(plan.max_parallelism),
        "pipeline.operator-chaining.enabled": str(plan.chaining).lower(),
    }

    def add(
        name: str, spec: OperatorSpec, inputs: Sequence[StreamEdge], parallelism: int, *, stateful: bool = False,
        commits: bool = False,
    ) -> int:  # fmt: skip
        node = graph.add(name, spec, tuple(inputs), parallelism=parallelism, stateful=stateful, commits=commits)
        node.uid = name
        return node.node_id

    heads = []
    for number, (plans, parallelism) in enumerate(zip(plan.sources, plan.source_parallelism, strict=True)):
        if plan.pushed_rows and number == 0:
            pushing = SourceFunctionSpec(PushingSource(world, plans, plan.pushed_rows))
            heads.append(add("source-0", pushing, (), parallelism, stateful=True))
            continue
        if plan.discovered and number == 0:
            at_once = None if plan.discovered < 0 else plan.discovered
            discovering = DiscoveringSource(world, plans, plan.batch_rows, at_once, timed=plan.discovered_timed)
            strategy = WatermarkStrategy.for_monotonous_timestamps("t")
            node = add_fed_source(graph, "source-0", discovering, (), strategy)
            node.uid, node.parallelism = "source-0", parallelism
            heads.append(node.node_id)
            continue
        source_type = HookedSource if plan.hooked and number == 0 else SimulatedSource
        source = source_type(world, plans, plan.batch_rows)
        strategy = replace(WatermarkStrategy.for_monotonous_timestamps("t"), alignment=plan.alignment)
        spec = SourceSpec(source, tuple(source.enumerate_splits()), strategy)
        heads.append(add(f"source-{number}", spec, (), parallelism, stateful=True))
    first = heads[0]
    current = heads
    for number, stage in enumerate(plan.stages):
        keys = ("k",) if stage.partitioning is Partitioning.HASH else ()
        spec_of: dict[str, OperatorSpec] = {
            "map": MapBatchesSpec(AddOne(world)),
            "filter": FilterSpec(DropSome(DROP_MODULUS)),
            "twice": FlatMapRowsSpec(Twice(), SCHEMA if plan.keyed in KEEP_ROWS else None),
            "ask": AsyncSpec(Ask(world, stage.unanswered), stage.capacity, stage.timeout_ms, True, SCHEMA),
            "ask any": AsyncSpec(Ask(world, stage.unanswered), stage.capacity, stage.timeout_ms, False, SCHEMA),
            "watermarks": WatermarkSpec(WatermarkStrategy.for_bounded_out_of_orderness("t", stage.bound_ms)),
            "pass": KeyedProcessSpec(("k",), PassOn(world), SCHEMA, "t"),
        }
        edges = [StreamEdge(node, stage.partitioning, keys) for node in current]
        if number == 0 and plan.second_edge is not None:
            keys = ("k",) if plan.second_edge is Partitioning.HASH else ()
            edges[1] = StreamEdge(current[1], plan.second_edge, keys)
        current = [
            add(
                f"{stage.kind}-{number}",
                spec_of[stage.kind],
                edges,
                stage.parallelism,
                stateful=stage.capacity > 0 or stage.kind in ("watermarks", "pass"),
            )
        ]
    if plan.keyed != "none":
        edges = [StreamEdge(node, Partitioning.HASH, ("k",)) for node in current]
        if plan.keyed in JOINS:
            edges.append(StreamEdge(first, Partitioning.HASH, ("k",), target_input=1))
        if plan.keyed == "rules":
            edges.append(StreamEdge(first, Partitioning.BROADCAST, target_input=1))
        current = [add("keyed", _keyed_spec(plan, world), edges, plan.keyed_parallelism, stateful=True)]
    if plan.side_parallelism:
        edges = [StreamEdge(node, side_output_tag=SIDE) for node in current]
        side = SinkSpec(LedgerSink(world, "side"))
        add("side-sink", side, edges, plan.side_parallelism, stateful=True, commits=True)
    if plan.keyed in WINDOWED and plan.has_late_rows:
        edges = [StreamEdge(node, side_output_tag=LATE) for node in current]
        late = SinkSpec(LedgerSink(world, "late"))
        add("late-sink", late, edges, plan.sink_parallelism, stateful=True, commits=True)
    edges = [StreamEdge(node, plan.sink_partitioning) for node in current]
    if plan.sink_kind == "together":
        sink = TogetherSink(world, "main")
        writer = add("sink", SinkWriterSpec(sink), edges, plan.sink_parallelism, stateful=True)
        edges = [StreamEdge(writer, Partitioning.RESCALE)]
        committer = add("sink-committer", GlobalCommitterSpec(sink), edges, 1, stateful=True, commits=True)
        graph.nodes[committer].max_parallelism = 1
    else:
        add("sink", _sink_spec(plan, world, "main"), edges, plan.sink_parallelism, stateful=True, commits=True)
    if plan.raw_branch:
        raw = SinkSpec(LedgerSink(world, "raw"))
        add("raw-sink", raw, [StreamEdge(first)], plan.raw_sink_parallelism, stateful=True, commits=True)
    return translate(graph, job_id=job_id, name=world, configuration=Configuration(settings)).job_graph


def _keyed_spec(plan: JobPlan, world: str) -> OperatorSpec:
    late = LATE if plan.has_late_rows else ""
    match plan.keyed:
        case "running":
            aggregates = (Aggregate("n", "count"), Aggregate("total", "sum", "v"))
            return RunningAggregateSpec(("k",), aggregates, ("s", "i"))
        case "window":
            aggregates = (Aggregate("n", "count"), Aggregate("total", "sum", "v"))
            return WindowAggregateSpec(("k",), "t", TumblingEventTimeWindows(plan.bucket_ms), aggregates, 0, late)
        case "window rows":
            tumbling = TumblingEventTimeWindows(plan.bucket_ms)
            return WindowProcessSpec(("k",), "t", tumbling, SumOfWindow(world), late_output_tag=late)
        case "sliding":
            aggregates = (Aggregate("n", "count"), Aggregate("total", "sum", "v"))
            sliding = SlidingEventTimeWindows(plan.bucket_ms * SLIDES, plan.bucket_ms)
            return WindowAggregateSpec(("k",), "t", sliding, aggregates)
        case "session":
            aggregates = (Aggregate("n", "count"), Aggregate("total", "sum", "v"))
            return WindowAggregateSpec(("k",), "t", EventTimeSessionWindows(SESSION_GAP_MS), aggregates, 0, late)
        case "join":
            return IntervalJoinSpec(SIDE_OF_JOIN, SIDE_OF_JOIN, JOINED, *JOINED_BETWEEN_MS)
        case "window join":
            return WindowJoinSpec(SIDE_OF_JOIN, SIDE_OF_JOIN, TumblingEventTimeWindows(plan.bucket_ms), JOINED)
        case "temporal join":
            return TemporalJoinSpec(SIDE_OF_JOIN, SIDE_OF_JOIN, JOINED)
        case "rules":
            return CoProcessSpec((("k",), ()), ("t", ""), CountRules(world), PROCESS_SCHEMA, (RULES,))
        case _:
            function = CountWithTimers(
                world, plan.bucket_ms, plan.process_state, side=plan.side_parallelism > 0, repeat_ms=plan.repeat_ms
            )
            return KeyedProcessSpec(("k",), function, PROCESS_SCHEMA, "t")


def _sink_spec(plan: JobPlan, world: str, name: str) -> OperatorSpec:
    if plan.sink_kind == "function":
        return SinkFunctionSpec(LedgerTransactions(world, name))
    return SinkSpec(LedgerSink(world, name))


# --- the reference ----------------------------------------------------------------------------------------------------


@dataclass
class Reference:
    """What must come out."""

    rows: list[SimulatedRow] = field(default_factory=list)
    """Before the keyed operator."""


def source_rows(plan: JobPlan, source: int) -> list[SimulatedRow]:
    return [split.row(index) for split in plan.sources[source] for index in range(split.rows)]


def rows_before_keyed(plan: JobPlan) -> list[SimulatedRow]:
    """In the order of the splits."""
    rows = [row for number in range(len(plan.sources)) for row in source_rows(plan, number)]
    for stage in plan.stages:
        rows = list(_STAGES[stage.kind](rows))
        if stage.partitioning is Partitioning.BROADCAST:
            rows = [row for row in rows for _ in range(stage.parallelism)]
    return rows


def _mapped(rows: Iterable[SimulatedRow]) -> Iterable[SimulatedRow]:
    return ((s, i, k, v + 1, t) for s, i, k, v, t in rows)


def _filtered(rows: Iterable[SimulatedRow]) -> Iterable[SimulatedRow]:
    return (row for row in rows if row[1] % DROP_MODULUS)


def _doubled(rows: Iterable[SimulatedRow]) -> Iterable[SimulatedRow]:
    return ((s, i * 2 + j, k, v, t) for s, i, k, v, t in rows for j in (0, 1))


_STAGES: dict[str, Callable[[Iterable[SimulatedRow]], Iterable[SimulatedRow]]] = {
    "map": _mapped,
    "filter": _filtered,
    "twice": _doubled,
    "ask": _mapped,
    "ask any": _mapped,
    "watermarks": lambda rows: rows,
    "pass": lambda rows: rows,
}


def side_rows(rows: Iterable[SimulatedRow]) -> list[SimulatedRow]:
    """(k, s, i)"""
    return [(k, s, i) for s, i, k, v, _ in rows if v % 2 == 0]


def windows(
    rows: Iterable[SimulatedRow], slide_ms: int, slides: int = 1
) -> dict[tuple[int, int, int], tuple[int, int]]:
    """(key, window start, window end) to (count, sum). `slides`: a window lasts so many."""
    counts: Counter[tuple[int, int, int]] = Counter()
    sums: Counter[tuple[int, int, int]] = Counter()
    for _, _, k, v, t in rows:
        for number in range(slides):
            start = (t // slide_ms - number) * slide_ms
            counts[k, start, start + slides * slide_ms] += 1
            sums[k, start, start + slides * slide_ms] += v
    return {place: (counts[place], sums[place]) for place in counts}


def sessions(rows: Iterable[SimulatedRow]) -> dict[tuple[int, int, int], tuple[int, int]]:
    """(key, start, end) to (count, sum)."""
    found: dict[tuple[int, int, int], tuple[int, int]] = {}
    of_key: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, _, k, v, t in rows:
        of_key[k].append((t, v))
    for k, timed in of_key.items():
        timed.sort()
        start, n, total = timed[0][0], 0, 0
        for index, (t, v) in enumerate(timed):
            n, total = n + 1, total + v
            if index + 1 == len(timed) or timed[index + 1][0] - t >= SESSION_GAP_MS:
                found[k, start, t + SESSION_GAP_MS] = n, total
                start, n, total = timed[(index + 1) % len(timed)][0], 0, 0
    return found


def joined(plan: JobPlan) -> list[SimulatedRow]:
    """Pairs."""
    of_key: dict[int, list[SimulatedRow]] = defaultdict(list)
    for row in source_rows(plan, 0):
        of_key[row[2]].append(row)
    low, high = JOINED_BETWEEN_MS
    pairs: list[SimulatedRow] = []
    for left in rows_before_keyed(plan):
        partners = of_key[left[2]]
        match plan.keyed:
            case "join":
                found = [right for right in partners if low <= right[4] - left[4] <= high]
            case "window join":
                found = [right for right in partners if right[4] // plan.bucket_ms == left[4] // plan.bucket_ms]
            case _:
                found = sorted((right for right in partners if right[4] <= left[4]), key=lambda right: right[4])[-1:]
        pairs += [(*left, *right) for right in found]
    return pairs


def timers(rows: Iterable[SimulatedRow], bucket_ms: int) -> set[tuple[int, int]]:
    """(key, time) of every timer."""
    return {(k, (t // bucket_ms + 1) * bucket_ms) for _, _, k, _, t in rows}
