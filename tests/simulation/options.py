"""What one seed decides: the cluster, the job, the settings, and which faults there are and how often.

Swarm testing: every run enables a random subset of the faults, so that rare combinations are not drowned by common ones.
Nothing here runs anything; `describe` is what a replay prints first.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from snapline.dataflow.api.watermarks import WatermarkAlignmentParams
from snapline.dataflow.partitioning import Partitioning
from tests.simulation.job_plan import JOINS, JobPlan, Stage, draw_job

FAULT_KINDS = (
    "kill task manager",
    "kill coordinator",
    "kill at storage",
    "break control connection",
    "break data stream",
    "partition",
    "slow network",
    "duplicate messages",
    "failing storage",
    "slow storage",
    "user exception",
    "slow task",
    "failing commit",
)

STOPS = ("stop", "drain", "cancel")
"""What a user may ask for that ends the job."""
FREEZING_KINDS = ("freeze", "replace coordinator")
LATER_KINDS = ("clocks", "isolate")
RETENTION = "execution.checkpointing.externalized-checkpoint-retention"
SETTLED = "jobmanager.adaptive-scheduler.resource-stabilization-timeout"
RESIZING = "resize cluster"
"""Only of runs whose job follows its slots."""
ZOOKEEPER_KINDS = ("lose answers of zookeeper", "expire session")
LOCAL_KINDS = ("lose machine", "damage local copies")

RELAY_KINDS = ("lose relay", "relay stands still")

GENERATION = 21
"""What is drawn grows; a seed of an earlier generation is drawn as it was then. New with each:
2 `LATER_KINDS` and ZooKeeper
3 a state backend that lets keys go
4 side outputs, a job beside the user's
5 sources that keep step
6 machines and local recovery
7 jobs that are stopped while coordinators are killed, and runs in which nothing else is
8 runs that are all about data in flight
9 jobs that follow their slots
10 master hooks
11 requests to the outside
12 timers by the clock
13 sessions and joins
14 watermarks from the middle of a job, and late rows; queues that are full before and behind forward edges; sources that push;
   window joins, temporal joins, broadcast state
15 inputs of one task over edges of different kinds; windows that keep rows, and windows that slide
16 jobs that are stopped for good, with --drain
17 jobs that are cancelled, and go on in another from a retained checkpoint
18 jobs that are cancelled for good, and keep nothing
19 relays
20 requests that nobody ever answers
21 no job that restarts for each checkpoint that takes longer than its rows need (such a job never ends, in Flink neither)"""


@dataclass(frozen=True)
class FaultOptions:
    """Which faults are on in the safety phase, and how often they come."""

    enabled: frozenset[str] = frozenset()
    mean_pause_ms: int = 1500
    """Between two faults that come at a time of their own."""

    def __contains__(self, kind: str) -> bool:
        return kind in self.enabled


@dataclass(frozen=True)
class Options:
    """One run."""

    seed: int
    task_managers: int
    slots: int
    max_delay_ms: int
    pause_ms: int
    """Of the sources, between two batches."""
    job: JobPlan
    job_settings: dict[str, str]
    cluster_settings: dict[str, str]
    faults: FaultOptions
    safety_ms: int
    """Faults stop after this."""
    liveness_ms: int = 240_000
    """After that, the job must have finished within this."""
    start_delay_ms: int = 300
    forks: int = 1
    """Completed checkpoints that are restored on the side and run to the end."""
    rescale_forks: bool = False
    """At another parallelism."""
    operations: tuple[tuple[int, str], ...] = ()
    """What the user does, and when: savepoint, checkpoint, rescale, stop (with a savepoint, and go on from it),
    drain (stop for good: all windows and timers fire), cancel (and go on from the last checkpoint, if it is retained)."""
    stalls: tuple[str, int] = ("", 0)
    """Tasks with this in their name wait up to so long between two pieces of work, faults or not."""
    another_job: JobPlan | None = None
    """That nobody touches, and that faults of the first must not keep from its end."""
    coordinators: int = 0
    """On a ZooKeeper; 0: there is none, and one coordinator at a time on a directory."""
    machines: int = 0
    """On which TaskManagers keep copies of state; 0: each has one of its own, and keeps none."""

    @property
    def exactly_once(self) -> bool:
        return self.job_settings["execution.checkpointing.mode"] == "EXACTLY_ONCE"

    @property
    def retains_on_cancellation(self) -> bool:
        return self.job_settings.get(RETENTION) == "RETAIN_ON_CANCELLATION"

    @property
    def is_reactive(self) -> bool:
        return self.job_settings.get("scheduler-mode") == "reactive"

    @property
    def retained(self) -> int:
        return int(self.job_settings["execution.checkpointing.num-retained"])

    @property
    def has_zookeeper(self) -> bool:
        return self.coordinators > 0

    def describe(self) -> str:
        job = ", ".join(f"{key.removeprefix('execution.')}={value}" for key, value in self.job_settings.items())
        faults = ", ".join(sorted(self.faults.enabled)) or "none"
        done = ", ".join(f"{kind} at {at_ms} ms" for at_ms, kind in self.operations) or "nothing"
        beside = f"\n  another job: {self.another_job.describe()}" if self.another_job else ""
        slow = (
            f"\n  tasks with {self.stalls[0]!r} in their name wait up to {self.stalls[1]} ms" if self.stalls[1] else ""
        )
        return (
            f"seed {self.seed}\n  cluster: {self.task_managers} TaskManagers with {self.slots} slots, "
            f"{f'{self.coordinators} coordinators on ZooKeeper' if self.coordinators else 'one coordinator'}, {f'{self.machines} machines, ' if self.machines else ''}messages take up to "
            f"{self.max_delay_ms} ms\n  job: {self.job.describe()}{beside}\n  sources pause up to {self.pause_ms} ms\n"
            f"  settings: {job}{slow}\n  the user: {done}; a checkpoint is started from on the side"
            f"{', rescaled' if self.rescale_forks else ''}{'; it follows its slots' if self.is_reactive else ''}\n  faults for {self.safety_ms} ms, every {self.faults.mean_pause_ms} ms: {faults}"
        )


def draw_options(seed: int, *, faults: bool = True, generation: int = GENERATION) -> Options:
    """Everything about the run of a seed."""
    rng = random.Random(f"{seed}/options")
    mode = rng.choice(["aligned", "aligned", "unaligned", "timeout", "at-least-once"])
    job = draw_job(rng, allow_broadcast=mode in ("aligned", "at-least-once"))
    another_job = None
    if generation >= 4:
        fourth = random.Random(f"{seed}/generation 4")
        if job.keyed == "process" and fourth.random() < 0.5:
            job = replace(job, side_parallelism=fourth.choice([1, 1, 2, 3]))
        if fourth.random() < 0.2:
            another_job = draw_job(fourth, allow_broadcast=mode in ("aligned", "at-least-once"))
    if generation >= 5:
        job = _with_alignment(job, random.Random(f"{seed}/alignment"))
    if generation >= 10 and random.Random(f"{seed}/hook").random() < 0.25:
        job = replace(job, hooked=True)
    if generation >= 11:
        job = _with_requests(job, random.Random(f"{seed}/requests"))
    if generation >= 20:
        job = _with_hanging_requests(job, random.Random(f"{seed}/hanging requests"))
    by_clock = random.Random(f"{seed}/timers by the clock")
    has_copies = any(stage.partitioning is Partitioning.BROADCAST for stage in job.stages)  # they cannot be told apart
    if generation >= 12 and job.keyed == "process" and not has_copies and by_clock.random() < 0.6:
        job = replace(job, repeat_ms=by_clock.choice([1, 5, 50, 300]))
    joins = random.Random(f"{seed}/sessions and joins")
    if generation >= 13 and job.keyed != "none" and joins.random() < 0.3:
        job = replace(job, keyed=joins.choice(["session", "join"]), side_parallelism=0, repeat_ms=0)
    if generation >= 14:
        two_inputs = random.Random(f"{seed}/two inputs")
        if job.keyed != "none" and two_inputs.random() < 0.2:
            keyed = two_inputs.choice(["rules", "rules", "window join", "temporal join"])
            bucket_ms = 50 if keyed == "window join" else job.bucket_ms  # pairs grow with its square
            job = replace(job, keyed=keyed, bucket_ms=bucket_ms, side_parallelism=0, repeat_ms=0)
        job = _with_watermarks(job, random.Random(f"{seed}/watermarks"))
        job = _pushed(job, random.Random(f"{seed}/pushed"))
    if generation >= 15:
        job = _with_second_edge(job, random.Random(f"{seed}/second edge"))
        if job.keyed == "window":
            kinds_of_window = ["window", *([] if job.pushed_rows else ["window rows"])]
            kinds_of_window += [] if job.has_late_rows else ["sliding"]
            job = replace(job, keyed=random.Random(f"{seed}/windows").choice(kinds_of_window))
    task_managers = rng.randint(1, 4)
    wanted = job.slots + (another_job.slots if another_job else 0)
    slots = max(-(-wanted // task_managers), rng.randint(1, 2))
    kinds = [kind for kind in FAULT_KINDS if rng.random() < 0.35]
    later_kinds = random.Random(f"{seed}/freezing")
    kinds += [kind for kind in FREEZING_KINDS if later_kinds.random() < 0.25]
    later = random.Random(f"{seed}/generation 2")
    drawn_later = [kind for kind in LATER_KINDS if later.random() < 0.2]
    coordinators = later.choice([1, 2, 2, 3]) if later.random() < 0.3 else 0
    of_zookeeper = [kind for kind in ZOOKEEPER_KINDS if later.random() < 0.3]
    if generation >= 2:
        kinds += drawn_later + (of_zookeeper if coordinators else [])
    if rng.random() < 0.08 or not faults:
        kinds = []
    interval_ms = rng.choice([30, 100, 250, 600])
    settings = {
        "execution.checkpointing.interval": f"{interval_ms} ms",
        "execution.checkpointing.timeout": f"{rng.choice([400, 2000, 20000])} ms",
        "execution.checkpointing.min-pause": f"{rng.choice([0, 0, 20, 150])} ms",
        "execution.checkpointing.max-concurrent-checkpoints": str(
            1 if mode in ("unaligned", "timeout") else rng.choice([1, 1, 2, 3])
        ),
        "execution.checkpointing.mode": "AT_LEAST_ONCE" if mode == "at-least-once" else "EXACTLY_ONCE",
        "execution.checkpointing.unaligned.enabled": str(mode in ("unaligned", "timeout")).lower(),
        "execution.checkpointing.aligned-checkpoint-timeout": (
            f"{rng.choice([1, 10, 60])} ms" if mode == "timeout" else "0 ms"
        ),
        "execution.checkpointing.tolerable-failed-checkpoints": rng.choice(["-1", "-1", "0", "3"]),
        "execution.checkpointing.num-retained": str(rng.choice([1, 1, 2, 3])),
        "execution.buffer-timeout": f"{rng.choice([0, 5, 30])} ms",
        "execution.batch.target-rows": str(rng.choice([1, 8, 64])),
        "pipeline.auto-watermark-interval": f"{rng.choice([0, 20, 200])} ms",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1000000",
        "restart-strategy.fixed-delay.delay": f"{rng.choice([0, 50, 400])} ms",
        "task.cancellation.interval": "500 ms",
        "task.cancellation.timeout": "5 s",
        "slot.request.timeout": "10 min",
    }
    cluster = {
        "heartbeat.interval": "400 ms",
        "heartbeat.timeout": f"{rng.choice([1500, 3000])} ms",
        "cluster.registration.initial-timeout": "50 ms",
        "cluster.registration.max-timeout": "800 ms",
        "cluster.registration.error-delay": "200 ms",
        "cluster.registration.refused-registration-delay": "400 ms",
        "taskmanager.registration.timeout": "60 s",
        "taskmanager.slot.timeout": "2 s",
        "resourcemanager.taskmanager-timeout": "0 ms",
        "taskmanager.network.credits-per-channel": str(rng.choice([1, 2, 8])),
        "taskmanager.network.max-queued-batches": str(rng.choice([1, 2, 8])),
        "execution.checkpointing.data-inline-threshold": rng.choice(["0 kb", "1 kb", "20 kb"]),
        "task.cancellation.interval": "500 ms",
        "task.cancellation.timeout": "5 s",
    }
    if random.Random(f"{seed}/incremental").random() < 0.5:
        settings["execution.checkpointing.incremental"] = "true"
    if generation >= 3 and random.Random(f"{seed}/backend").random() < 0.4:
        settings["state.backend.type"] = "rocksdb"
        settings["state.backend.rocksdb.memory.fixed-per-slot"] = "1 kb"
    if any(stage.kind.startswith("ask") for stage in job.stages):
        # Checkpoints take as long as what is asked for; a job that restarts for each that takes too long asks again, and never ends.
        settings["execution.checkpointing.tolerable-failed-checkpoints"] = "-1"
    if generation >= 21 and settings["execution.checkpointing.timeout"] == "400 ms":
        settings["execution.checkpointing.tolerable-failed-checkpoints"] = "-1"
    machines = 0
    sixth = random.Random(f"{seed}/generation 6")
    if generation >= 6 and sixth.random() < 0.4:
        settings["execution.state-recovery.from-local"] = "true"
        machines = sixth.randint(1, task_managers)
        kinds += [kind for kind in (*LOCAL_KINDS, "kill task manager") if kinds and sixth.random() < 0.4]
        if sixth.random() < 0.8:
            cluster["execution.checkpointing.data-inline-threshold"] = "0 kb"
    operations = _draw_operations(random.Random(f"{seed}/operations"))
    if generation >= 16 and random.Random(f"{seed}/drain").random() < 0.4:
        operations = tuple((at_ms, "drain" if kind == "stop" else kind) for at_ms, kind in operations)
    if generation >= 17 and random.Random(f"{seed}/cancel").random() < 0.4:
        operations = tuple((at_ms, "cancel" if kind == "stop" else kind) for at_ms, kind in operations)
        settings[RETENTION] = "RETAIN_ON_CANCELLATION"
        if generation >= 18 and random.Random(f"{seed}/retention").random() < 0.4:
            settings[RETENTION] = "DELETE_ON_CANCELLATION"
    if generation < 7 and any(kind == "stop" for _, kind in operations):
        # A client that does not learn how its stop went cannot know whether to go on from the savepoint.
        kinds = [kind for kind in kinds if kind not in ("kill coordinator", "kill at storage", "replace coordinator")]
        coordinators = 0
    relays = random.Random(f"{seed}/relays")
    if generation >= 19 and kinds and relays.random() < 0.3:
        kinds += [kind for kind in RELAY_KINDS if relays.random() < 0.6]
    options = Options(
        seed=seed,
        operations=operations,
        rescale_forks=random.Random(f"{seed}/rescale").random() < 0.5
        and all(stage.partitioning is not Partitioning.BROADCAST for stage in job.stages),
        task_managers=task_managers,
        slots=slots,
        machines=machines,
        another_job=another_job,
        max_delay_ms=rng.choice([0, 3, 12]),
        pause_ms=rng.choice([10, 60, 150]),
        job=job,
        job_settings=settings,
        cluster_settings=cluster,
        faults=FaultOptions(frozenset(kinds), rng.choice([300, 800, 2000])),
        safety_ms=rng.choice([2000, 5000, 9000]),
        coordinators=coordinators if generation >= 2 else 0,
    )
    seventh = random.Random(f"{seed}/generation 7")
    if generation >= 7 and faults and seventh.random() < 0.2:
        return only_leaders_die(options, seventh)
    in_flight = random.Random(f"{seed}/in flight")
    if generation >= 8 and in_flight.random() < 0.25 and not any(kind in STOPS for _, kind in operations):
        options = with_data_in_flight(options, in_flight)
        if generation >= 14 and in_flight.random() < 0.4:
            options = with_forward_edges(options, in_flight)
    slow = random.Random(f"{seed}/slow watermarks")
    if generation >= 14 and options.job.has_late_rows and not options.stalls[1] and slow.random() < 0.5:
        tolerant = {"execution.checkpointing.tolerable-failed-checkpoints": "-1"}  # checkpoints take long
        options = replace(
            options, job_settings={**options.job_settings, **tolerant}, stalls=("watermarks", slow.choice([5, 20, 40]))
        )
    reactive = random.Random(f"{seed}/reactive")
    if generation >= 9 and reactive.random() < 0.15 and faults:
        options = _reactive(options, reactive)
    return options


def only_leaders_die(options: Options, rng: random.Random) -> Options:
    """And TaskManagers wait for the next one."""
    return replace(
        options,
        faults=FaultOptions(frozenset({"kill coordinator"}), rng.choice([1000, 2000])),
        cluster_settings={**options.cluster_settings, "heartbeat.timeout": "8 s"},
        coordinators=rng.choice([0, 1, 2, 3]),
    )


def _reactive(options: Options, rng: random.Random) -> Options:
    """The parallelism follows the slots, and TaskManagers come and go."""
    job = options.job
    if (
        job.pushed_rows
        or options.another_job is not None
        or any(stage.partitioning is Partitioning.BROADCAST for stage in job.stages)
    ):
        return options
    settings = {
        **options.job_settings,
        "scheduler-mode": "reactive",
        SETTLED: f"{rng.choice([20, 100, 400])} ms",
    }
    enabled = options.faults.enabled | {RESIZING}
    return replace(
        options,
        job_settings=settings,
        operations=tuple((at_ms, "stop" if kind == "drain" else kind) for at_ms, kind in options.operations),
        task_managers=rng.randint(1, 4),
        slots=rng.choice([1, 1, 2]),
        faults=FaultOptions(enabled, options.faults.mean_pause_ms),
    )


def with_data_in_flight(options: Options, rng: random.Random) -> Options:
    """Unaligned checkpoints of a job whose queues are full, rescaled and interrupted again and again: where Flink once lost rows.

    Sources do not wait, some tasks do; and whatever is restored is restored again before it was processed."""
    names = [
        "sink",
        *(["keyed"] if options.job.keyed != "none" else []),
        *(stage.kind for stage in options.job.stages),
    ]
    splits = sum(map(len, options.job.sources))
    rows = rng.randint(200, 600) // splits
    job = replace(
        options.job,
        sources=tuple(tuple(replace(plan, rows=rows) for plan in plans) for plans in options.job.sources),
        batch_rows=rng.choice([1, 3]),
        source_parallelism=tuple(rng.choice([1, 2, 3]) for _ in options.job.sources),
        stages=tuple(
            replace(stage, partitioning=rng.choice([None, Partitioning.REBALANCE, Partitioning.HASH]))
            if stage.partitioning is Partitioning.BROADCAST
            else stage
            for stage in options.job.stages
        ),
        chaining=False,
        keyed="temporal join" if options.job.keyed == "window join" else options.job.keyed,  # fewer rows
    )
    beside = options.another_job
    if beside is not None and any(stage.partitioning is Partitioning.BROADCAST for stage in beside.stages):
        beside = None
    wanted = job.slots + (beside.slots if beside else 0)
    task_managers = rng.randint(2, 4)
    settings = {
        **options.job_settings,
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": rng.choice(["0 ms", "0 ms", "1 ms", "5 ms", "20 ms"]),
        "execution.checkpointing.interval": f"{rng.choice([30, 60, 120])} ms",
        "execution.checkpointing.timeout": "2 s",
        "execution.checkpointing.max-concurrent-checkpoints": "1",
        "execution.checkpointing.tolerable-failed-checkpoints": "-1",
        "execution.buffer-timeout": "0 ms",
        "execution.batch.target-rows": rng.choice(["1", "8"]),
        "restart-strategy.fixed-delay.delay": "0 ms",
    }
    cluster = {
        **options.cluster_settings,
        "taskmanager.network.credits-per-channel": rng.choice(["1", "2"]),
        "taskmanager.network.max-queued-batches": rng.choice(["2", "8", "16"]),
    }
    kinds = (
        "kill task manager",
        "user exception",
        "break data stream",
        "slow storage",
        "slow network",
        "failing storage",
    )
    enabled = {kind for kind in kinds if rng.random() < 0.4} | {rng.choice(["kill task manager", "break data stream"])}
    enabled |= options.faults.enabled & {"replace coordinator", "freeze", "duplicate messages", *LOCAL_KINDS}
    asked = ["rescale", "rescale", "rescale", "savepoint", "checkpoint"]
    operations = tuple((400 + 400 * n + rng.randint(0, 400), rng.choice(asked)) for n in range(rng.randint(2, 6)))
    return replace(
        options,
        job=job,
        another_job=beside,
        task_managers=task_managers,
        slots=max(-(-wanted // task_managers), rng.randint(1, 2)),
        job_settings=settings,
        cluster_settings=cluster,
        operations=operations,
        rescale_forks=rng.random() < 0.7,
        pause_ms=rng.choice([0, 2, 10]),
        stalls=(rng.choice(names), rng.choice([10, 20, 40])),  # behind them queues are full
        faults=FaultOptions(frozenset(enabled if options.faults.enabled else ()), rng.choice([300, 600, 1000])),
    )


def with_forward_edges(options: Options, rng: random.Random) -> Options:
    """The rows of a key keep their order, whatever is in flight when the job is rescaled; several tasks before its operator wait."""
    job = options.job
    parallelism = rng.choice([1, 2, 3])
    kind = rng.choice(["map", "twice"])
    names = [*(f"{kind}-{n}" for n in range(2)), "keyed"]
    job = replace(
        job,
        sources=(tuple(replace(plan, own_keys=True) for plan in job.sources[0]),),
        source_parallelism=(parallelism,),
        second_edge=None,
        stages=tuple(Stage(kind, None, parallelism) for _ in range(rng.randint(1, 2))),
        keyed=rng.choice(["running", "process"]),
        repeat_ms=0,
        side_parallelism=0,
    )
    wanted = job.slots + (options.another_job.slots if options.another_job else 0)
    return replace(
        options,
        job=job,
        slots=max(-(-wanted // options.task_managers), options.slots),
        stalls=(rng.choice(names), options.stalls[1]),
    )


def _pushed(job: JobPlan, rng: random.Random) -> JobPlan:
    """Where nothing else is asked of the first source."""
    if rng.random() >= 0.2 or job.alignment is not None or job.hooked or job.keyed in JOINS:
        return job
    return replace(job, pushed_rows=rng.choice([1, 3, 10]))


def _with_second_edge(job: JobPlan, rng: random.Random) -> JobPlan:
    """Where there are two edges to begin with, and no row is copied."""
    if rng.random() >= 0.4 or len(job.sources) == 1 or not job.stages:
        return job
    others = {Partitioning.REBALANCE, Partitioning.RESCALE, Partitioning.HASH} - {job.stages[0].partitioning}
    if job.stages[0].partitioning is Partitioning.BROADCAST:
        return job
    return replace(job, second_edge=rng.choice(sorted(others, key=lambda kind: kind.value)))


def _with_watermarks(job: JobPlan, rng: random.Random) -> JobPlan:
    """From the middle of the job, where nothing keeps rows in the order of their time."""
    if rng.random() >= 0.25 or job.keyed in JOINS or len(job.stages) > 1:
        return job
    edges = [None, None, Partitioning.REBALANCE, Partitioning.RESCALE, Partitioning.HASH]
    stage = Stage("watermarks", rng.choice(edges), rng.choice([1, 2, 3]), bound_ms=rng.choice([0, 30, 200]))
    stages = (stage, *job.stages) if rng.random() < 0.5 else (*job.stages, stage)
    return replace(job, stages=stages)


def _with_requests(job: JobPlan, rng: random.Random) -> JobPlan:
    """Instead of some of the maps."""
    stages = [
        replace(stage, kind=kind, capacity=rng.choice([1, 3, 20]), timeout_ms=rng.choice([20, 10_000]))
        if stage.kind == "map" and (kind := rng.choice(["", "ask", "ask any"]))
        else stage
        for stage in job.stages
    ]
    return replace(job, stages=tuple(stages))


def _with_hanging_requests(job: JobPlan, rng: random.Random) -> JobPlan:
    """Where a timeout is short enough for the run to end."""
    stages = [
        replace(stage, unanswered=rng.choice([0.0, 0.05, 0.5, 1.0])) if 0 < stage.timeout_ms < 100 else stage
        for stage in job.stages
    ]
    return replace(job, stages=tuple(stages))


def _with_alignment(job: JobPlan, rng: random.Random) -> JobPlan:
    """Sources that keep step, where there is anything to keep step with."""
    if rng.random() >= 0.3 or sum(map(len, job.sources)) == 1:
        return job
    return replace(job, alignment=WatermarkAlignmentParams("all", rng.choice([20, 100, 400]), rng.choice([5, 20, 100])))


def _draw_operations(rng: random.Random) -> tuple[tuple[int, str], ...]:
    if rng.random() < 0.5:
        return ()
    kinds = [rng.choice(["savepoint", "checkpoint", "rescale", "rescale"]) for _ in range(rng.randint(0, 2))]
    if rng.random() < 0.4:
        kinds.append("stop")
    return tuple((600 + rng.randint(0, 2500), kind) for kind in kinds)
