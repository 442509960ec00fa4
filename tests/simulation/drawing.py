"""Which run a seed is: the options of `options.py`, drawn one topic after another.

Swarm testing: every run enables a random subset of the faults, so that rare combinations are not drowned by common
ones. A change here changes what seeds mean, and may: a run that found a bug is kept as a file of its options
(`kept_runs.py`).
"""

from __future__ import annotations

import random
from dataclasses import replace

from snapline.dataflow.api.watermarks import WatermarkAlignmentParams
from snapline.dataflow.partitioning import Partitioning
from tests.simulation.job_plan import JOINS, JobPlan, Stage, draw_job
from tests.simulation.options import (
    FAULT_KINDS,
    FREEZING_KINDS,
    LATER_KINDS,
    LOCAL_KINDS,
    RELAY_KINDS,
    RESIZING,
    RETENTION,
    SETTLED,
    STOPS,
    ZOOKEEPER_KINDS,
    FaultOptions,
    Options,
)
from tests.simulation.workload import SplitPlan


def draw_options(seed: int, *, faults: bool = True) -> Options:
    """Draw everything about the run of a seed."""
    rng = random.Random(f"{seed}/options")
    mode = rng.choice(["aligned", "aligned", "unaligned", "timeout", "at-least-once"])
    job, another_job = draw_jobs(seed, rng, allow_broadcast=mode in ("aligned", "at-least-once"))
    task_managers = rng.randint(1, 4)
    wanted = job.slots + (another_job.slots if another_job else 0)
    slots = max(-(-wanted // task_managers), rng.randint(1, 2))
    coordinators, kinds = draw_faults(seed, rng, faults=faults)
    settings = draw_job_settings(seed, rng, mode, job)
    cluster = draw_cluster_settings(rng)
    machines = draw_machines(random.Random(f"{seed}/generation 6"), task_managers, settings, cluster, kinds)
    operations = draw_operations(seed, settings)
    relays = random.Random(f"{seed}/relays")
    if kinds and relays.random() < 0.3:
        kinds += [kind for kind in RELAY_KINDS if relays.random() < 0.6]
    options = Options(
        seed=seed,
        operations=tuple((at, "stop" if job.discovered and kind == "drain" else kind) for at, kind in operations),
        rescale_forks=random.Random(f"{seed}/rescale").random() < 0.5 and not _has_copies(job),
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
        coordinators=coordinators,
    )
    return draw_theme(seed, options, faults=faults)


def draw_jobs(seed: int, rng: random.Random, *, allow_broadcast: bool) -> tuple[JobPlan, JobPlan | None]:
    """Draw the job, and perhaps another one beside it."""
    job = draw_job(rng, allow_broadcast=allow_broadcast)
    beside = random.Random(f"{seed}/generation 4")
    another_job = None
    if job.keyed == "process" and beside.random() < 0.5:
        job = replace(job, side_parallelism=beside.choice([1, 1, 2, 3]))
    if beside.random() < 0.2:
        another_job = draw_job(beside, allow_broadcast=allow_broadcast)
    job = _with_alignment(job, random.Random(f"{seed}/alignment"))
    if random.Random(f"{seed}/hook").random() < 0.25:
        job = replace(job, hooked=True)
    job = _with_requests(job, random.Random(f"{seed}/requests"))
    job = _with_hanging_requests(job, random.Random(f"{seed}/hanging requests"))
    job = _with_timers_by_the_clock(job, random.Random(f"{seed}/timers by the clock"))
    job = _with_sessions_and_joins(job, random.Random(f"{seed}/sessions and joins"))
    job = _with_two_inputs(job, random.Random(f"{seed}/two inputs"))
    job = _with_watermarks(job, random.Random(f"{seed}/watermarks"))
    job = _pushed(job, random.Random(f"{seed}/pushed"))
    job = _discovered(job, random.Random(f"{seed}/discovered"))
    job = _with_second_edge(job, random.Random(f"{seed}/second edge"))
    job = _with_keys_before(job, random.Random(f"{seed}/keys before"))
    if random.Random(f"{seed}/together").random() < 0.3:
        job = replace(job, sink_kind="together")
    return _with_kind_of_window(job, random.Random(f"{seed}/windows")), another_job


def draw_faults(seed: int, rng: random.Random, *, faults: bool) -> tuple[int, list[str]]:
    """Draw how many coordinators there are on a ZooKeeper, and which faults come."""
    kinds = [kind for kind in FAULT_KINDS if rng.random() < 0.35]
    freezing = random.Random(f"{seed}/freezing")
    kinds += [kind for kind in FREEZING_KINDS if freezing.random() < 0.25]
    leaders = random.Random(f"{seed}/generation 2")
    kinds += [kind for kind in LATER_KINDS if leaders.random() < 0.2]
    coordinators = leaders.choice([1, 2, 2, 3]) if leaders.random() < 0.3 else 0
    of_zookeeper = [kind for kind in ZOOKEEPER_KINDS if leaders.random() < 0.3]
    kinds += of_zookeeper if coordinators else []
    return coordinators, [] if rng.random() < 0.08 or not faults else kinds


def draw_job_settings(seed: int, rng: random.Random, mode: str, job: JobPlan) -> dict[str, str]:
    """Draw the settings of the job: checkpoints, restarts, batches, the state backend."""
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
        "restart-strategy.same-row.max-failures": "0",  # a function that fails by chance may do so at one row three times
        "restart-strategy.fixed-delay.delay": f"{rng.choice([0, 50, 400])} ms",
        "task.cancellation.interval": "500 ms",
        "task.cancellation.timeout": "5 s",
        "slot.request.timeout": "10 min",
    }
    if random.Random(f"{seed}/tolerated lead").random() < 0.5:
        settings["execution.event-time.tolerated-lead"] = "1 ms"
    if random.Random(f"{seed}/incremental").random() < 0.5:
        settings["execution.checkpointing.incremental"] = "true"
    if random.Random(f"{seed}/backend").random() < 0.4:
        settings["state.backend.type"] = "rocksdb"
        settings["state.backend.rocksdb.memory.fixed-per-slot"] = "1 kb"
    if any(stage.kind.startswith("ask") for stage in job.stages):
        # Checkpoints take as long as what is asked for; a job that restarts for each that takes too long asks again,
        # and never ends.
        settings["execution.checkpointing.tolerable-failed-checkpoints"] = "-1"
    if settings["execution.checkpointing.timeout"] == "400 ms":
        settings["execution.checkpointing.tolerable-failed-checkpoints"] = "-1"
    return settings


def draw_cluster_settings(rng: random.Random) -> dict[str, str]:
    """Draw the settings of the processes."""
    return {
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


def draw_machines(
    rng: random.Random, task_managers: int, settings: dict[str, str], cluster: dict[str, str], kinds: list[str]
) -> int:
    """Draw on how many machines TaskManagers keep copies of state, 0 for no copies; adds what goes with it to the
    rest."""
    if rng.random() >= 0.4:
        return 0
    settings["execution.state-recovery.from-local"] = "true"
    machines = rng.randint(1, task_managers)
    kinds += [kind for kind in (*LOCAL_KINDS, "kill task manager") if kinds and rng.random() < 0.4]
    if rng.random() < 0.8:
        cluster["execution.checkpointing.data-inline-threshold"] = "0 kb"
    return machines


def draw_operations(seed: int, settings: dict[str, str]) -> tuple[tuple[int, str], ...]:
    """Draw what the user does, and when; how a job is cancelled is one of its settings."""
    rng = random.Random(f"{seed}/operations")
    kinds: list[str] = []
    if rng.random() >= 0.5:
        kinds += [rng.choice(["savepoint", "checkpoint", "rescale", "rescale"]) for _ in range(rng.randint(0, 2))]
        kinds += ["stop"] if rng.random() < 0.4 else []
    operations = tuple((600 + rng.randint(0, 2500), kind) for kind in kinds)
    if random.Random(f"{seed}/drain").random() < 0.4:
        operations = tuple((at_ms, "drain" if kind == "stop" else kind) for at_ms, kind in operations)
    if random.Random(f"{seed}/cancel").random() < 0.4:
        operations = tuple((at_ms, "cancel" if kind == "stop" else kind) for at_ms, kind in operations)
        deletes = random.Random(f"{seed}/retention").random() < 0.4
        settings[RETENTION] = "DELETE_ON_CANCELLATION" if deletes else "RETAIN_ON_CANCELLATION"
    return operations


def draw_theme(seed: int, options: Options, *, faults: bool) -> Options:
    """Give some runs one thing that they are about: regions that end one after another, leaders that die, data in
    flight, slow watermarks, a cluster that is resized."""
    uneven = random.Random(f"{seed}/uneven regions")
    if faults and uneven.random() < 0.15:
        return with_uneven_regions(options, uneven)
    leaders = random.Random(f"{seed}/generation 7")
    if faults and leaders.random() < 0.2:
        return only_leaders_die(options, leaders)
    in_flight = random.Random(f"{seed}/in flight")
    if in_flight.random() < 0.25 and not any(kind in STOPS for _, kind in options.operations):
        options = with_data_in_flight(options, in_flight)
        if in_flight.random() < 0.4:
            options = with_forward_edges(options, in_flight)
    slow = random.Random(f"{seed}/slow watermarks")
    if options.job.has_late_rows and not options.stalls[1] and slow.random() < 0.5:
        tolerant = {"execution.checkpointing.tolerable-failed-checkpoints": "-1"}  # checkpoints take long
        options = replace(
            options, job_settings={**options.job_settings, **tolerant}, stalls=("watermarks", slow.choice([5, 20, 40]))
        )
    reactive = random.Random(f"{seed}/reactive")
    if reactive.random() < 0.15 and faults:
        options = _reactive(options, reactive)
    leave = random.Random(f"{seed}/leave")
    if faults and leave.random() < (0.6 if options.is_reactive else 0.1):
        leaves = tuple((600 + leave.randint(0, 2500), "leave") for _ in range(leave.randint(1, 3)))
        options = replace(options, operations=(*options.operations, *leaves))
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
    """Unaligned checkpoints of a job whose queues are full, rescaled and interrupted again and again: where Flink once
    lost rows.

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
    """The rows of a key keep their order, whatever is in flight when the job is rescaled; several tasks before its
    operator wait."""
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


def with_uneven_regions(options: Options, rng: random.Random) -> Options:
    """Each subtask is a region of its own: some end early, others fail later and are restored alone, and what the ended
    ones left behind as union list state is still to be known."""
    regions = rng.choice([2, 2, 3, 4])
    first = options.job.sources[0][0]
    splits = regions * rng.choice([1, 1, 2])
    short = set(rng.sample(range(regions), rng.randint(1, regions - 1)))

    def rows(split: int) -> int:
        return rng.randint(0, 15) if split % regions in short else rng.randint(60, 160)

    with_union_state = Stage("watermarks", None, regions, bound_ms=rng.choice([0, 30, 200]))
    kinds = [rng.choice(["map", "filter", "twice"]) for _ in range(rng.randint(0, 1))]
    stages = [Stage(kind, None, regions) for kind in kinds]
    pushed_rows = rng.choice([0, 0, 1, 3])
    if not pushed_rows or rng.random() < 0.5:
        stages.insert(rng.randint(0, len(stages)), with_union_state)
    job = replace(
        options.job,
        sources=(tuple(SplitPlan(n, rows(n), first.keys, first.own_keys, splits) for n in range(splits)),),
        source_parallelism=(regions,),
        batch_rows=rng.choice([1, 3]),
        stages=tuple(stages),
        second_edge=None,
        keyed="none",
        repeat_ms=0,
        side_parallelism=0,
        sink_kind=rng.choice(["committer", "function"]),
        sink_parallelism=regions,
        sink_partitioning=None,
        raw_branch=rng.random() < 0.25,
        raw_sink_parallelism=regions,
        alignment=None,
        pushed_rows=pushed_rows,
        discovered=0,
        hooked=options.job.hooked and not pushed_rows,
    )
    kinds = [
        "kill task manager",
        "user exception",
        "break data stream",
        "kill coordinator",
        "slow task",
        "slow storage",
    ]
    enabled = {kind for kind in kinds if rng.random() < 0.3} | {rng.choice(["kill task manager", "user exception"])}
    settings = {
        **options.job_settings,
        "execution.checkpointing.interval": f"{rng.choice([30, 100])} ms",
        "restart-strategy.fixed-delay.delay": f"{rng.choice([0, 50])} ms",
    }
    settings.pop("scheduler-mode", None)
    return replace(
        options,
        job=job,
        another_job=None,
        task_managers=regions,
        slots=1,
        machines=min(options.machines, regions),
        job_settings=settings,
        pause_ms=rng.choice([60, 150]),
        faults=FaultOptions(frozenset(enabled), rng.choice([300, 800])),
    )


def _has_copies(job: JobPlan) -> bool:
    """Whether rows are copied on a broadcast edge, so that they cannot be told apart."""
    return any(stage.partitioning is Partitioning.BROADCAST for stage in job.stages)


def _with_timers_by_the_clock(job: JobPlan, rng: random.Random) -> JobPlan:
    if job.keyed == "process" and not _has_copies(job) and rng.random() < 0.6:
        return replace(job, repeat_ms=rng.choice([1, 5, 50, 300]))
    return job


def _with_sessions_and_joins(job: JobPlan, rng: random.Random) -> JobPlan:
    if job.keyed != "none" and rng.random() < 0.3:
        return replace(job, keyed=rng.choice(["session", "join"]), side_parallelism=0, repeat_ms=0)
    return job


def _with_two_inputs(job: JobPlan, rng: random.Random) -> JobPlan:
    if job.keyed == "none" or rng.random() >= 0.2:
        return job
    keyed = rng.choice(["rules", "rules", "window join", "temporal join"])
    bucket_ms = 50 if keyed == "window join" else job.bucket_ms  # pairs grow with its square
    return replace(job, keyed=keyed, bucket_ms=bucket_ms, side_parallelism=0, repeat_ms=0)


def _with_kind_of_window(job: JobPlan, rng: random.Random) -> JobPlan:
    if job.keyed != "window":
        return job
    kinds = ["window", *([] if job.pushed_rows else ["window rows"]), *([] if job.has_late_rows else ["sliding"])]
    return replace(job, keyed=rng.choice(kinds))


def _pushed(job: JobPlan, rng: random.Random) -> JobPlan:
    """Where nothing else is asked of the first source."""
    if rng.random() >= 0.2 or job.alignment is not None or job.hooked or job.keyed in JOINS:
        return job
    return replace(job, pushed_rows=rng.choice([1, 3, 10]))


def _discovered(job: JobPlan, rng: random.Random) -> JobPlan:
    """Where nothing else is asked of the first source, with more splits."""
    if rng.random() >= 0.25 or job.alignment is not None or job.hooked or job.pushed_rows:
        return job
    return replace(job, discovered=rng.choice([1, 1, 2, -1]), discovered_timed=rng.random() < 0.5)


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


def _with_keys_before(job: JobPlan, rng: random.Random) -> JobPlan:
    """An operator over keys right before the last one, which has its watermarks from there."""
    if job.keyed == "none" or rng.random() >= 0.2:
        return job
    stage = Stage("pass", Partitioning.HASH, rng.choice([1, 2, 3]))
    return replace(job, stages=(*job.stages, stage))


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
