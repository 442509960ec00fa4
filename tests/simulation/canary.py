"""Bugs planted on purpose: a simulator that does not find these finds nothing.

Each replaces one method of the product for the time of a run. `python -m tests.simulation --canary NAME` shows how soon
it is caught; a test does so for all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from snapline.coordinator.actors import checkpoint_io
from snapline.coordinator.checkpoint import publication
from snapline.coordinator.checkpoint.events import CheckpointStored
from snapline.coordinator.checkpoint.in_flight import CheckpointsInFlight
from snapline.coordinator.checkpoint.registered_hooks import MasterHooks
from snapline.coordinator.checkpoint.restore.restoration import Restoration
from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.execution.restart_strategy import FixedDelayRestartStrategy
from snapline.coordinator.ha.embedded import EmbeddedCheckpointIDCounter, LeadershipFence
from snapline.coordinator.ha.zookeeper_high_availability import FencedNodes
from snapline.coordinator.jobmaster.reconciliation import AdoptionRefused, Reconciliation
from snapline.coordinator.jobmaster.rescaling import Rescaling
from snapline.coordinator.jobmaster.scheduler import Scheduler
from snapline.coordinator.jobmaster.speakers import Speakers
from snapline.coordinator.jobmaster.watermark_alignment import WatermarkAlignment
from snapline.dataflow.api.watermarks import WatermarkAlignmentParams
from snapline.dataflow.elements import MIN_WATERMARK_MS, CheckpointBarrier, EndOfChannelState, Watermark
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.partitioning import Partitioning
from snapline.runtime.leaders.leader_election import Leadership
from snapline.taskmanager.checkpointing.checkpoint_barrier_tracker import CheckpointBarrierTracker
from snapline.taskmanager.checkpointing.subtask_checkpoint_coordinator import SubtaskCheckpointCoordinator
from snapline.taskmanager.network.channels import pipelined_subpartition
from snapline.taskmanager.operators.base import keyed_operator
from snapline.taskmanager.operators.base.event_time import WatermarkTracker
from snapline.taskmanager.operators.process.async_operator import AsyncOperator
from snapline.taskmanager.operators.process.keyed_process import KeyedProcessOperator
from snapline.taskmanager.operators.sinks.global_committer_operator import GlobalCommitterOperator
from snapline.taskmanager.operators.sinks.sink_operator import SinkOperator
from snapline.taskmanager.operators.sources.source_operator import SourceOperator
from snapline.taskmanager.operators.sources.split_enumerator_operator import SplitEnumeratorOperator
from snapline.taskmanager.operators.sources.split_reader_operator import SplitReaderOperator
from snapline.taskmanager.operators.sources.watermark_operator import WatermarkOperator
from snapline.taskmanager.snapshots import uploader
from snapline.taskmanager.snapshots.blobs import plan_blobs
from snapline.taskmanager.snapshots.local_copy import CopiedPart
from snapline.taskmanager.snapshots.local_recovery import LocalRecovery
from snapline.taskmanager.snapshots.restore import SegmentBlob
from snapline.taskmanager.task import task_wiring
from snapline.taskmanager.task.operator_chain import ChainOutput
from snapline.taskmanager.task.record_writer import RecordWriter
from snapline.taskmanager.task.task_restore import TaskRestore
from tests.simulation import strangers
from tests.simulation.canary_options import deposed, nothing_is_lost, on_machines, on_zookeeper, task_managers_die
from tests.simulation.drawing import only_leaders_die, with_data_in_flight, with_forward_edges, with_uneven_regions
from tests.simulation.job_plan import Stage
from tests.simulation.liars import LIES
from tests.simulation.options import RESIZING, SETTLED, Options
from tests.simulation.strangers import STRANGER
from tests.simulation.workload import FOR_EVER_MS


@dataclass(frozen=True)
class Canary:
    """One planted bug."""

    what: str
    plant: Callable[[], Any]
    """A context manager."""
    options: Callable[[Options], Options] = lambda options: options
    """Brings about what the bug needs, where seeds are rare that do."""
    seed: int = 500
    """Where the search for a seed that finds the bug begins: at one that did."""


def _setting(key: str, value: str) -> Callable[[Options], Options]:
    return lambda options: replace(options, job_settings={**options.job_settings, key: value})


def _exactly_once(options: Options) -> Options:
    settings = {**options.job_settings, "execution.checkpointing.mode": "EXACTLY_ONCE"}
    return replace(
        options,
        job_settings=settings,
        faults=replace(options.faults, enabled=options.faults.enabled | {"kill task manager"}),
    )


def _aligned(options: Options) -> Options:
    return _setting("execution.checkpointing.unaligned.enabled", "false")(_exactly_once(options))


def _unaligned(options: Options) -> Options:
    chosen = _exactly_once(options)
    settings = {
        **chosen.job_settings,
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "0 ms",
        "execution.checkpointing.max-concurrent-checkpoints": "1",
    }
    cluster = {**chosen.cluster_settings, "taskmanager.network.max-queued-batches": "8"}
    stages = tuple(
        replace(s, partitioning=None) if s.partitioning and s.partitioning.value == "broadcast" else s
        for s in chosen.job.stages
    )
    return replace(
        chosen, job_settings=settings, cluster_settings=cluster, job=replace(chosen.job, stages=stages), pause_ms=0
    )


def _coordinator_dies(options: Options) -> Options:
    return replace(options, faults=replace(options.faults, enabled=options.faults.enabled | {"kill coordinator"}))


def _leaders_die(options: Options) -> Options:
    return only_leaders_die(options, random.Random(options.seed))


@contextmanager
def _adopt_nothing() -> Iterator[None]:
    with patch.object(Reconciliation, "decide", lambda *_: AdoptionRefused("planted")):
        yield


@contextmanager
def _forget_who_has_finished() -> Iterator[None]:
    original = Reconciliation.report

    def report(self: Any, resource_id: Any, reports: Any) -> None:
        original(self, resource_id, [each for each in reports if not each.state.is_terminal])

    with (
        patch.object(Reconciliation, "report", report),
        patch.object(Reconciliation, "_known_to_have_finished", lambda *_: frozenset()),
    ):
        yield


def with_liars(options: Options) -> Options:
    """Several TaskManagers, which lie and die."""
    chosen = _exactly_once(options)
    enabled = chosen.faults.enabled | {LIES}
    return replace(chosen, task_managers=max(2, chosen.task_managers), faults=replace(chosen.faults, enabled=enabled))


def with_stranger(options: Options) -> Options:
    """A process that says anything, while TaskManagers die."""
    chosen = _exactly_once(options)
    return replace(chosen, faults=replace(chosen.faults, enabled=chosen.faults.enabled | {STRANGER}))


def _with_busy_stranger(options: Options) -> Options:
    """The process that says anything says it often, and is disturbed by nobody."""
    chosen = with_stranger(options)
    return replace(chosen, faults=replace(chosen.faults, enabled=frozenset({STRANGER}), mean_pause_ms=100))


@contextmanager
def _believe_strangers() -> Iterator[None]:
    with patch.object(Speakers, "refusal", lambda *_: None):
        yield


@contextmanager
def _believe_a_stranger() -> Iterator[None]:
    """It answers everything that it hears, so that some of it comes before what is true."""
    with _believe_strangers(), patch.object(strangers, "ANSWERING", 1.0):
        yield


@contextmanager
def _take_every_slot() -> Iterator[None]:
    with patch.object(GivenSlots, "is_given", lambda *_: True):
        yield


@contextmanager
def _believe_every_name() -> Iterator[None]:
    with patch.object(publication, "may_be_claimed", lambda path: True):
        yield


@contextmanager
def _notify_before_durable() -> Iterator[None]:
    original = checkpoint_io.CheckpointIo._store

    def store(self: Any, effect: Any) -> None:
        self._tell(CheckpointStored(effect.checkpoint.checkpoint_id))
        tell, self._tell = self._tell, lambda event: None
        try:
            original(self, effect)
        finally:
            self._tell = tell

    with patch.object(checkpoint_io.CheckpointIo, "_store", store):
        yield


@contextmanager
def _commit_at_the_barrier() -> Iterator[None]:
    original = SinkOperator.snapshot_state

    def snapshot_state(self: Any, checkpoint_id: CheckpointID, timestamp_ms: int) -> Any:
        taken = original(self, checkpoint_id, timestamp_ms)
        self.notify_checkpoint_complete(checkpoint_id)
        return taken

    with patch.object(SinkOperator, "snapshot_state", snapshot_state):
        yield


@contextmanager
def _commit_under_a_later_id() -> Iterator[None]:
    original = GlobalCommitterOperator.prepare_snapshot_pre_barrier

    def prepare_snapshot_pre_barrier(self: Any, checkpoint_id: CheckpointID) -> None:
        original(self, checkpoint_id)
        self._pending = [each._replace(checkpoint_id=checkpoint_id) for each in self._pending]

    with patch.object(GlobalCommitterOperator, "prepare_snapshot_pre_barrier", prepare_snapshot_pre_barrier):
        yield


def _together(options: Options) -> Options:
    chosen = _exactly_once(options)
    return replace(chosen, job=replace(chosen.job, sink_kind="together"))


@contextmanager
def _forget_committables() -> Iterator[None]:
    original = SinkOperator.snapshot_state

    def snapshot_state(self: Any, checkpoint_id: CheckpointID, timestamp_ms: int) -> Any:
        pending, self._pending = self._pending, {}
        try:
            return original(self, checkpoint_id, timestamp_ms)
        finally:
            self._pending = pending

    with patch.object(SinkOperator, "snapshot_state", snapshot_state):
        yield


@contextmanager
def _only_count_barriers() -> Iterator[None]:
    def create(mode: str, inputs: Any, listener: Any, **_: Any) -> Any:
        return CheckpointBarrierTracker(inputs, listener)

    with patch.object(task_wiring, "create_barrier_handler", create):
        yield


@contextmanager
def _lose_data_in_flight() -> Iterator[None]:
    original = plan_blobs

    with patch.object(uploader, "plan_blobs", lambda snapshots, channel_state: original(snapshots, None)):
        yield


@contextmanager
def _lose_state() -> Iterator[None]:
    original = TaskRestore.state_of

    def state_of(self: Any, operator_id: Any) -> Any:
        return replace(original(self, operator_id), keyed=())

    with patch.object(TaskRestore, "state_of", state_of):
        yield


@contextmanager
def _position_of_the_last_snapshot() -> Iterator[None]:
    """A source that snapshots where it was one checkpoint ago."""
    original = SourceOperator._element

    def element(self: Any, split: Any) -> dict[str, Any]:
        current = original(self, split)
        earlier = self.__dict__.setdefault("_canary", {})
        late = {**current, "position": earlier.get(split.split_id, current["position"])}
        earlier[split.split_id] = current["position"]
        return late

    with patch.object(SourceOperator, "_element", element):
        yield


@contextmanager
def _hand_out_again() -> Iterator[None]:
    """An enumerator whose snapshot has the splits that it handed out just before as waiting, too."""
    original = SplitEnumeratorOperator._hand_out

    def hand_out(self: Any, split: Any) -> None:
        original(self, split)
        self.__dict__["_canary"] = split

    def snapshot_state(self: Any, checkpoint_id: CheckpointID, timestamp_ms: int) -> Any:
        waiting = self._waiting
        late = self.__dict__.pop("_canary", None)
        self._waiting = waiting if late is None else type(waiting)([late, *waiting])
        snapshot = taken(self, checkpoint_id, timestamp_ms)
        self._waiting = waiting
        return snapshot

    taken = SplitEnumeratorOperator.snapshot_state
    with (
        patch.object(SplitEnumeratorOperator, "_hand_out", hand_out),
        patch.object(SplitEnumeratorOperator, "snapshot_state", snapshot_state),
    ):
        yield


@contextmanager
def _forget_handed_out() -> Iterator[None]:
    """Readers whose snapshot lacks the splits that they have not begun."""

    def snapshot_state(self: Any, checkpoint_id: CheckpointID, timestamp_ms: int) -> Any:
        unfinished = self._unfinished
        self._unfinished = {s.split_id for s in self._reader.snapshot_splits(checkpoint_id) if s.position.get("rows")}
        snapshot = taken(self, checkpoint_id, timestamp_ms)
        self._unfinished = unfinished
        return snapshot

    taken = SplitReaderOperator.snapshot_state
    with patch.object(SplitReaderOperator, "snapshot_state", snapshot_state):
        yield


def _discovers_many_at_once(options: Options) -> Options:
    """Readers take all splits at once, so that some wait in a reader, not begun."""
    chosen = discovers(options)
    settings = {**chosen.job_settings, "execution.checkpointing.interval": "20 ms"}
    faults = replace(chosen.faults, enabled=frozenset({"kill task manager"}), mean_pause_ms=200)
    return replace(chosen, job=replace(chosen.job, discovered=-1), job_settings=settings, faults=faults)


def discovers(options: Options) -> Options:
    """The first source discovers, exactly once, and TaskManagers die."""
    chosen = _exactly_once(options)
    job = replace(chosen.job, discovered=1, alignment=None, hooked=False, pushed_rows=0)
    faults = replace(chosen.faults, enabled=chosen.faults.enabled | {"kill task manager"})
    return replace(chosen, job=job, faults=faults)


@contextmanager
def _count_from_one() -> Iterator[None]:
    original = EmbeddedCheckpointIDCounter.start

    def start(self: Any) -> None:
        self._storage.delete_prefix(self._directory)
        original(self)

    with patch.object(EmbeddedCheckpointIDCounter, "start", start):
        yield


@contextmanager
def _barrier_overtakes_unasked() -> Iterator[None]:
    """Aligned barriers go to the front of the queue, and nobody keeps what they overtake."""
    original = pipelined_subpartition.PipelinedSubpartition.add

    def add(self: Any, element: Any, *, priority: bool = False) -> Any:
        if isinstance(element, CheckpointBarrier) and not priority and not self._restored:
            outcome = original(self, element, priority=True)
            return replace(outcome, overtaken=())
        return original(self, element, priority=priority)

    with patch.object(pipelined_subpartition.PipelinedSubpartition, "add", add):
        yield


@contextmanager
def _watermark_too_early() -> Iterator[None]:
    """Watermarks run ahead of the rows."""
    original = WatermarkTracker.next_watermark_ms

    def next_watermark_ms(self: Any) -> int | None:
        watermark_ms = original(self)
        return None if watermark_ms is None else watermark_ms + 200

    with patch.object(WatermarkTracker, "next_watermark_ms", next_watermark_ms):
        yield


@contextmanager
def _write_without_the_fence() -> Iterator[None]:
    """A leader on ZooKeeper that believes what it believes, and that does not watch its candidate: each would
    do."""

    def write(self: Any, build: Callable[[Any], None]) -> Any:
        return self._session.transact(build)

    with patch.object(FencedNodes, "write", write), patch.object(Leadership, "end_with_candidate", lambda self: None):
        yield


@contextmanager
def _never_look_who_leads() -> Iterator[None]:
    """The same, on a directory."""
    with patch.object(LeadershipFence, "check", lambda self: None):
        yield


@contextmanager
def _keep_what_nobody_needs() -> Iterator[None]:
    with patch.object(checkpoint_io.CheckpointIo, "_delete", lambda self, directory, paths: None):
        yield


@contextmanager
def _restart_much_later() -> Iterator[None]:
    with patch.object(FixedDelayRestartStrategy, "notify_failure", lambda self, now_ms: 100_000):
        yield


@contextmanager
def _never_pause_a_split() -> Iterator[None]:
    """A source that is not ahead as a whole reads all its splits."""
    with patch.object(WatermarkTracker, "splits_beyond", lambda self, watermark_ms: ()):
        yield


@contextmanager
def _forget_the_others() -> Iterator[None]:
    """A JobMaster that takes each source for the only one of its group."""
    original = WatermarkAlignment.report

    def report(self: Any, message: Any, now_ms: int) -> Any:
        self._groups.clear()
        return original(self, message, now_ms)

    with patch.object(WatermarkAlignment, "report", report):
        yield


@contextmanager
def _never_use_more_slots() -> Iterator[None]:
    """A job that follows its slots takes fewer when it must, and never more."""
    with patch.object(Rescaling, "_wanted", lambda self: None):
        yield


@contextmanager
def _stay_where_it_is() -> Iterator[None]:
    """A job that is to leave a TaskManager is restarted, and keeps its slots there."""
    original = Scheduler.rescale

    def rescale(self: Any, parallelism: Any, now_ms: int, leave: Any = ()) -> Any:
        return original(self, parallelism, now_ms)

    with patch.object(Scheduler, "rescale", rescale):
        yield


def _leaves(options: Options) -> Options:
    chosen = _follows_its_slots(options)
    return replace(
        chosen,
        task_managers=3,
        faults=replace(chosen.faults, mean_pause_ms=60_000),
        operations=((900, "leave"), (2_000, "leave")),
    )


def _follows_its_slots(options: Options) -> Options:
    settings = {
        **options.job_settings,
        "scheduler-mode": "reactive",
        SETTLED: "100 ms",
        "execution.checkpointing.interval": "5 s",  # the run is long
    }
    faults = replace(options.faults, enabled=frozenset({RESIZING}), mean_pause_ms=800)
    stages = tuple(replace(stage, partitioning=None) for stage in options.job.stages)
    job = replace(options.job, stages=stages, max_parallelism=4)
    return replace(options, job=job, job_settings=settings, faults=faults, another_job=None, operations=())


@contextmanager
def _forget_what_hooks_said() -> Iterator[None]:
    original = MasterHooks.match

    def match(self: Any, states: Any, *, allow_unmatched: bool) -> Any:
        return original(self, (), allow_unmatched=allow_unmatched)

    with patch.object(MasterHooks, "match", match):
        yield


def _hooked(options: Options) -> Options:
    chosen = task_managers_die(options)
    return replace(chosen, job=replace(chosen.job, hooked=True))


@contextmanager
def _forget_ended_regions() -> Iterator[None]:
    """As it once was: who restores a subtask alone forgets what others of its vertex left behind, be it known from
    them or, by a later leader, from the latest checkpoint."""
    answer = Restoration._answer

    def answer_forgetting(self: Any, prepared: Any, *arguments: Any, **named: Any) -> Any:
        replaced = getattr(prepared, "vertices", None) or ()
        self.left_states = {task: state for task, state in self.left_states.items() if task.vertex_id not in replaced}
        return answer(self, prepared, *arguments, **named)

    with (
        patch.object(CheckpointsInFlight, "forget_final_states", lambda self, _: self._final_states.clear()),
        patch.object(Restoration, "_answer", answer_forgetting),
    ):
        yield


def _uneven_regions(options: Options) -> Options:
    """The job is over soon, or never."""
    return replace(with_uneven_regions(options, random.Random(options.seed)), operations=(), liveness_ms=20_000)


@contextmanager
def _forget_requests_under_way() -> Iterator[None]:
    with patch.object(AsyncOperator, "_unanswered", lambda self: []):
        yield


def _asks(options: Options) -> Options:
    chosen = _exactly_once(options)
    return replace(chosen, job=replace(chosen.job, stages=(Stage("ask", None, 2, 3, 10_000),)), pause_ms=60)


@contextmanager
def _wait_for_ever_for_an_answer() -> Iterator[None]:
    with patch.object(AsyncOperator, "wake_at_ms", None):
        yield


def _hangs(options: Options) -> Options:
    chosen = _exactly_once(options)
    stage = Stage("ask", None, 2, 3, 20, unanswered=0.05)
    return replace(chosen, job=replace(chosen.job, stages=(stage,)))


@contextmanager
def _never_wake_for_timers() -> Iterator[None]:
    with patch.object(KeyedProcessOperator, "_arm", lambda self: None):
        yield


@contextmanager
def _forget_timers_by_the_clock() -> Iterator[None]:
    """Restored jobs do not have them."""
    original = KeyedProcessOperator._open_function

    def open_function(self: Any, backend: Any) -> None:
        original(self, backend)
        self._timers.processing.advance(FOR_EVER_MS, 1_000_000)

    with patch.object(KeyedProcessOperator, "_open_function", open_function):
        yield


def _repeats(options: Options) -> Options:
    chosen = _exactly_once(options)
    plans = tuple(tuple(replace(plan, keys=2) for plan in plans) for plans in chosen.job.sources)
    return replace(chosen, job=replace(chosen.job, sources=plans, keyed="process", repeat_ms=50), pause_ms=60)


def _keyed_by(kind: str) -> Callable[[Options], Options]:
    def options_of(options: Options) -> Options:
        job = replace(options.job, keyed=kind, side_parallelism=0, repeat_ms=0)
        return replace(_exactly_once(options), job=job)

    return options_of


@contextmanager
def _new_rows_before_restored_ones() -> Iterator[None]:
    """A task says that all that it restored is out when its own outputs are; what its inputs restored counts as new."""
    with (
        patch.object(task_wiring, "EndOfChannelState", lambda is_last: EndOfChannelState()),
        patch.object(SubtaskCheckpointCoordinator, "inputs_recovered", lambda _self, *, is_last: None),
    ):
        yield


@contextmanager
def _swallow_the_last_watermark() -> Iterator[None]:
    """A restored operator over keys that had the last watermark does not let it pass again."""
    initialize = keyed_operator.KeyedOperator.initialize_state

    def swallow(operator: keyed_operator.KeyedOperator, restored: Any) -> None:
        initialize(operator, restored)
        operator._may_be_unheard = False

    with (
        patch.object(keyed_operator, "MAX_WATERMARK_MS", None),
        patch.object(keyed_operator.KeyedOperator, "initialize_state", swallow),
    ):
        yield


def _keys_before_windows(options: Options) -> Options:
    """Windows are slow, and between them and another operator over keys queues are full."""
    chosen = with_data_in_flight(options, random.Random(options.seed))
    plans = tuple(replace(plan, rows=120 // len(chosen.job.sources[0])) for plan in chosen.job.sources[0])
    job = replace(
        chosen.job,
        sources=(plans,),
        source_parallelism=(2,),
        stages=(Stage("pass", Partitioning.HASH, 2),),
        second_edge=None,
        keyed="window",
        side_parallelism=0,
        repeat_ms=0,
    )
    faults = replace(chosen.faults, enabled=frozenset({"break data stream"}), mean_pause_ms=600)
    return replace(chosen, job=job, stalls=("keyed", 40), another_job=None, operations=(), faults=faults, forks=3)


@contextmanager
def _lower_watermarks() -> Iterator[None]:
    """One that waits to be sent is replaced by a lower one, the last one too."""

    def emit_watermark(self: Any, watermark: Watermark) -> None:
        self._watermark = watermark
        self._something_waits = True

    with (
        patch.object(RecordWriter, "emit_watermark", emit_watermark),
        patch.object(
            ChainOutput, "_watermark_ms", property(lambda self: MIN_WATERMARK_MS, lambda self, ms: None), create=True
        ),
        patch.object(WatermarkOperator, "_is_over", property(lambda self: False, lambda self, over: None), create=True),
    ):
        yield


def _with_forward_edges(options: Options) -> Options:
    rng = random.Random(options.seed)
    return with_forward_edges(with_data_in_flight(options, rng), rng)


def _with_late_rows(options: Options) -> Options:
    """Tasks with the watermarks are slow, and each watermark waits a while."""
    stages = (Stage("watermarks", Partitioning.REBALANCE, 3, bound_ms=30),)
    job = replace(options.job, stages=stages, keyed="window", side_parallelism=0, repeat_ms=0, chaining=False)
    settings = {
        **_exactly_once(options).job_settings,
        "execution.buffer-timeout": "200 ms",
        "pipeline.auto-watermark-interval": "100 ms",
    }
    return replace(
        options,
        job=job,
        job_settings=settings,
        stalls=("watermarks", 60),
        another_job=None,
        slots=max(options.slots, job.slots),
    )


def _in_step(options: Options) -> Options:
    """Several sources, one of which may fall behind."""
    chosen = task_managers_die(options)
    plan = options.job.sources[0][0]
    first, second = (
        tuple(replace(plan, split=split, rows=60, splits=4) for split in splits) for splits in ((0, 1), (2, 3))
    )
    job = replace(
        options.job,
        sources=(first, second),
        source_parallelism=(1, 2),
        alignment=WatermarkAlignmentParams("all", 50, 10),
    )
    return replace(chosen, job=job, another_job=None, slots=options.slots + 2)


@contextmanager
def _believe_every_copy() -> Iterator[None]:
    def read_range(self: CopiedPart, offset: int, size: int) -> bytes:
        return self.file.read(self.start + offset, size)

    with (
        patch.object(CopiedPart, "read_range", read_range),
        patch.object(SegmentBlob, "_check_digests", lambda *_: None),
    ):
        yield


@contextmanager
def _keep_every_copy() -> Iterator[None]:
    with patch.object(LocalRecovery, "release_job", lambda self, job_id: None):
        yield


CANARIES: dict[str, Canary] = {
    "notify before durable": Canary("completion is announced before the pointer is written", _notify_before_durable),
    "commit at the barrier": Canary("sinks commit without notification", _commit_at_the_barrier),
    "commit under a later id": Canary(
        "what waits is bound to a later checkpoint than that which holds it",
        _commit_under_a_later_id,
        _together,
        seed=506,
    ),
    "forget committables": Canary(
        "snapshots of sinks lack what is pre-committed", _forget_committables, _exactly_once, seed=504
    ),
    "only count barriers": Canary("the aligner forgets to block", _only_count_barriers, _aligned),
    "lose data in flight": Canary("unaligned snapshots lack the data in flight", _lose_data_in_flight, _unaligned),
    "lose keyed state": Canary("keyed state is not restored", _lose_state, _exactly_once),
    "position of the last snapshot": Canary(
        "sources snapshot an old position", _position_of_the_last_snapshot, _exactly_once, seed=507
    ),
    "hand out again": Canary("splits that were handed out wait on in the snapshot", _hand_out_again, discovers),
    "forget handed-out splits": Canary(
        "snapshots of readers lack splits not begun", _forget_handed_out, _discovers_many_at_once, seed=510
    ),
    "count from one": Canary("a new leader begins again with checkpoint 1", _count_from_one, _coordinator_dies),
    "barrier overtakes unasked": Canary(
        "aligned barriers overtake data that nobody keeps", _barrier_overtakes_unasked, _aligned
    ),
    "write without the fence": Canary(
        "a leader writes to ZooKeeper after it lost its session", _write_without_the_fence, on_zookeeper, seed=503
    ),
    "never look who leads": Canary(
        "a coordinator writes to its directory after another has taken over", _never_look_who_leads, deposed, seed=509
    ),
    "keep what nobody needs": Canary(
        "files of checkpoints that are gone are left behind", _keep_what_nobody_needs, nothing_is_lost
    ),
    "restart much later": Canary("a job that failed is not started again soon", _restart_much_later, task_managers_die),
    "never pause a split": Canary("splits that are ahead of their group are read", _never_pause_a_split, _in_step),
    "forget the others": Canary("the JobMaster lets every source of a group go on", _forget_the_others, _in_step),
    "believe every copy": Canary("damaged local copies of state are restored", _believe_every_copy, on_machines),
    "keep every copy": Canary("local copies of state outlive their job", _keep_every_copy, on_machines),
    "adopt nothing": Canary("a new leader restarts what runs", _adopt_nothing, _leaders_die),
    "forget who has finished": Canary(
        "a new leader waits for subtasks that have finished", _forget_who_has_finished, _leaders_die, seed=506
    ),
    "forget ended regions": Canary(
        "union list state of a subtask that ended is lost when another is restored alone",
        _forget_ended_regions,
        _uneven_regions,
        seed=555,
    ),
    "forget what hooks said": Canary("master hooks do not get their state back", _forget_what_hooks_said, _hooked),
    "forget requests under way": Canary(
        "snapshots lack rows that somebody outside is asked about", _forget_requests_under_way, _asks
    ),
    "wait for ever for an answer": Canary(
        "requests that take too long are not given up", _wait_for_ever_for_an_answer, _hangs, seed=501
    ),
    "never wake for timers": Canary("timers by the clock do not fire by themselves", _never_wake_for_timers, _repeats),
    "forget timers by the clock": Canary("they are not restored", _forget_timers_by_the_clock, _repeats),
    "lose sessions": Canary("those that are open are not restored", _lose_state, _keyed_by("session")),
    "lose rows of a join": Canary("those that wait for partners are not restored", _lose_state, _keyed_by("join")),
    "never use more slots": Canary(
        "a job that follows its slots does not grow with them", _never_use_more_slots, _follows_its_slots
    ),
    "stay where it is": Canary(
        "a job keeps slots of a TaskManager that is drained", _stay_where_it_is, _leaves, seed=8
    ),
    "new rows before restored ones": Canary(
        "rows that inputs restored go on as if they were new",
        _new_rows_before_restored_ones,
        _with_forward_edges,
        seed=1005,
    ),
    "swallow the last watermark": Canary(
        "windows behind an operator over keys never fire", _swallow_the_last_watermark, _keys_before_windows
    ),
    "lower watermarks": Canary("a watermark that waits is replaced by a lower one", _lower_watermarks, _with_late_rows),
    "believe strangers": Canary(
        "a TaskManager acknowledges for tasks that run elsewhere", _believe_strangers, with_liars, seed=523
    ),
    "believe a stranger": Canary(
        "a process that runs no task acknowledges, declines and ends those of others",
        _believe_a_stranger,
        _with_busy_stranger,
        seed=40,
    ),
    "believe every name": Canary(
        "a job deletes what a claimed snapshot names, whoever has written it",
        _believe_every_name,
        with_stranger,
        seed=242,
    ),
    "take every slot": Canary(
        "a job is deployed on slots that no coordinator gave to it", _take_every_slot, with_stranger, seed=4
    ),
    "watermark too early": Canary("watermarks promise what does not hold", _watermark_too_early),
}


def planted_options(name: str, options: Options) -> Options:
    """The options of a seed, with what the bug needs."""
    return CANARIES[name].options(options)
