"""Programs outside in the simulator: they stall, die, answer twice, answer late, decline and lie, and coordinators die.

    python -m tests.simulation.external_programs --seeds 3000
    python -m tests.simulation.external_programs --seed 42          tells its story

Everything but the network and the programs' work is the product's own: the coordinator with its JobMaster,
CheckpointCoordinator and stores, the core ExternalProgram at its end of a stream, and the Python client's Conversation
at the other. Each program counts, and writes ranges of numbers when a checkpoint completes, under names of their own.
Oracles: what is written is 1, 2, 3, ... to the end, without a hole, whatever was written again says the same, all tasks
that begin together begin from one checkpoint, no checkpoint that was announced as complete is gone back behind, and the
job finishes once the faults stop.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import snapline.coordinator.ha.embedded
from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.external.external_program import (
    EndProgram,
    ExternalProgram,
    FindJob,
    JobFound,
    JobMasterSaid,
    JobNotFound,
    ProgramEvent,
    ProgramIdentity,
    ProgramSaid,
    TellJobMaster,
    TellProgram,
)
from snapline.dataflow.graph.external_tasks import external_job
from snapline.dataflow.ids import JobID, LeaderSessionID, ResourceID
from snapline.dataflow.wire.messages import Fenced, JobStatus
from snapline.external import CheckpointDeclined, ExternalTask, TaskContext
from snapline.external.conversation import Conversation
from snapline.protos import external_pb2 as pb
from snapline.runtime.cores.connections import ConnectionID, Peer, PeerKind
from snapline.runtime.version import VERSION
from snapline.testing.simulated.cluster import SimulatedCluster
from snapline.testing.simulated.coordinator_process import SIGNER
from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.world import Process, SimulatedTime, Violation, World
from tests.simulation.seed_command import run_seeds

JOB = JobID("e" * 32)
UNTIL = 300
FAULTS_MS = 20_000
"""Faults stop after this."""
END_MS = 240_000
RETRY_MS = 100
MAX_STATE_BYTES = 10_000
SETTINGS = {
    "execution.checkpointing.interval": "200 ms",
    "execution.checkpointing.timeout": "1 s",
    "execution.checkpointing.tolerable-failed-checkpoints": "2",
    "execution.checkpointing.dir": "/checkpoints",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100000",
    "restart-strategy.fixed-delay.delay": "20 ms",
    "task.cancellation.timeout": "3 s",
}


@dataclass
class Options:
    """What the cluster is like: a coordinator, and no TaskManager."""

    task_managers: int = 0
    slots: int = 1
    max_delay_ms: int = 5
    start_delay_ms: int = 300
    cluster_settings: dict[str, str] = field(
        default_factory=lambda: {
            "heartbeat.interval": "100 ms",
            "heartbeat.timeout": "600 ms",
            "jobmanager.reconciliation.timeout": "500 ms",
            "execution.checkpointing.dir": "/checkpoints",
        }
    )
    machines: int = 0
    stalls: tuple[str, int] = ("", 0)


@dataclass
class Place:
    """What a task has written, which outlives its programs; and what it was told is durable."""

    written: dict[int, int] = field(default_factory=dict)
    """From the first number of a range to its last."""
    durable_up_to: int = 0

    def write(self, first: int, last: int) -> None:
        """Write a range; again only if it is the same."""
        if self.written.setdefault(first, last) != last:
            raise Violation(f"the range from {first} was written to {self.written[first]}, and now to {last}")


class Counter(ExternalTask):
    """What `examples.external_counter` does, with a place in memory."""

    def __init__(self, run: Run, rng: random.Random) -> None:
        self._run = run
        self._place = Place()
        self._rng = rng
        self.next = 1
        self.written_up_to = 0
        self._snapshots: dict[int, int] = {}

    def begin(self, context: TaskContext) -> None:
        self._place = self._run.places[context.task, context.subtask_index]
        state = json.loads(b"".join(context.state.get("counter", [])) or b'{"next": 1, "written_up_to": 0}')
        self.next, self.written_up_to = state["next"], state["written_up_to"]
        if self.next - 1 < self._place.durable_up_to:
            raise Violation(f"it begins at {self.next}, and {self._place.durable_up_to} was durable")
        self._snapshots = {}
        self._run.begins(context)
        self._write(self.next - 1)

    def work(self) -> float | None:
        if self.next <= UNTIL:
            self.next += 1
            return 0.01
        return None if self.written_up_to == UNTIL else 0.05

    def snapshot(self, checkpoint_id: int) -> dict[str, list[bytes]]:
        if self._run.has_faults and self._rng.random() < 0.03:
            raise CheckpointDeclined("not now")
        self._snapshots[checkpoint_id] = self.next - 1
        state = json.dumps({"next": self.next, "written_up_to": self.written_up_to}).encode()
        if self._run.has_faults and self._rng.random() < 0.02:
            return {"counter": [state], "fat": [b"x" * MAX_STATE_BYTES]}
        return {"counter": [state]}

    def complete(self, checkpoint_id: int) -> None:
        if checkpoint_id in self._snapshots:
            self._place.durable_up_to = max(self._place.durable_up_to, self._snapshots[checkpoint_id])
            self._write(self._snapshots[checkpoint_id])

    def _write(self, last: int) -> None:
        if last > self.written_up_to:
            self._place.write(self.written_up_to + 1, last)
            self.written_up_to = last


class Stream:
    """A stream between a program and the coordinator: the product's core at one end, its client at the other."""

    def __init__(self, program: SimulatedProgram, run: Run) -> None:
        self.program, self.run, self.world = program, run, program.world
        self.is_open = True
        self.conversation = Conversation(program.task)
        self.session = LeaderSessionID("")
        number = self.world.number("stream")
        self.connection = ConnectionID(f"program-{number}")
        given = GivenSlots(lambda: f"place-{number}", lambda: SIGNER)
        identity = ProgramIdentity(ResourceID(f"external-{number}"), given.give, str(number), VERSION, MAX_STATE_BYTES)
        self.core = ExternalProgram(identity)
        self._free_ms = {"in": 0, "out": 0}

    def take(self, event: ProgramEvent) -> None:
        """The coordinator's end."""
        if not self.is_open:
            return
        for effect in self.core.handle(event):
            match effect:
                case TellProgram(message):
                    self._later("out", partial(self.heard, message))
                case TellJobMaster(message):
                    self.world.network.send(self.program.name, self.connection, Fenced(self.session, message))
                case FindJob():
                    self._find()
                case EndProgram(reason, is_fault):
                    if is_fault and not self.program.lies:
                        raise Violation(f"an honest program's stream ends: {reason}")
                    self._later("out", lambda: self.end("the coordinator ended it"))

    def _find(self) -> None:
        coordinator = self.run.cluster.coordinator
        peer = Peer(PeerKind.JOB_MASTER, "", JOB)
        served = (
            coordinator.serve(peer) if coordinator is not None and coordinator.alive and coordinator.ready else None
        )
        if coordinator is None or served is None:
            over = self.run.cluster.outcomes.get(JOB)
            reason = pb.REJECTION_REASON_JOB_IS_OVER if over else pb.REJECTION_REASON_UNKNOWN_JOB
            self.take(JobNotFound(pb.Rejected(reason=reason, try_again=not over)))
            return
        master: Any = coordinator.runners[JOB].core
        self.session = master.identity.session
        dialler = self.run.endpoint(self)
        self.world.network.connect(dialler, served)
        self.take(JobFound(JOB))

    def _later(self, direction: str, action: Callable[[], None]) -> None:
        """In order, after a while, unless the program is gone by then."""
        now = self.world.clock.now_ms
        at_ms = self._free_ms[direction] = max(self._free_ms[direction], now + self.world.network.delay_ms())
        self.program.later(at_ms - now, lambda: action() if self.is_open else None)

    def say(self, message: pb.FromProgram) -> None:
        """The program's end: sometimes late, sometimes twice, sometimes with a lie."""
        rng = self.program.rng
        for each in [message, *([message] if self.run.has_faults and rng.random() < 0.03 else [])]:
            data = each.SerializeToString()
            self._later("in", partial(self._arrived, data))
        if self.program.lies and self.run.has_faults:
            self._later("in", lambda: self.take(ProgramSaid(self.program.lie())))

    def _arrived(self, data: bytes) -> None:
        self.take(ProgramSaid(pb.FromProgram.FromString(data)))

    def heard(self, message: pb.ToProgram) -> None:
        """The client answers, now or too late."""
        rng = self.program.rng
        answers = self.conversation.handle(message)
        is_late = message.HasField("trigger_checkpoint") and self.run.has_faults and rng.random() < 0.05
        for answer in answers:
            if is_late:
                self.program.later(rng.randint(500, 2_000), partial(self.say, answer))
            else:
                self.say(answer)
        if message.HasField("run_task"):
            self.program.work(self)

    def end(self, reason: str) -> None:
        """Both ends are done with it."""
        if self.is_open:
            self.is_open = False
            self.world.network.close(self.program.name, self.connection, reason)
            self.conversation.lost(reason)
            self.program.stream_ended(self)


class SimulatedProgram(Process):
    """One program."""

    def __init__(self, run: Run, task_name: str) -> None:
        super().__init__(run.world, f"{task_name}-{run.world.number(task_name)}")
        self.run_, self.task_name = run, task_name
        self.rng = run.world.random(f"program {self.name}")
        self.lies = self.rng.random() < 0.3
        self.task = Counter(run, self.rng)
        self.stream: Stream | None = None
        self.is_done = False
        self._attempts: list[str] = [""]
        self.later(self.rng.randint(0, 50), self.register)

    def register(self) -> None:
        stream = self.stream = Stream(self, self.run_)
        register = pb.Register(protocol_version=1, job=JOB, task=self.task_name, host="h", pid=1)
        stream.take(ProgramSaid(pb.FromProgram(register=register)))

    def stream_ended(self, stream: Stream) -> None:
        ended = stream.conversation.ended
        over = isinstance(ended, pb.Rejected) and ended.reason == pb.REJECTION_REASON_JOB_IS_OVER
        if over:
            self.is_done = True
        else:
            self.later(RETRY_MS, self.register)

    def work(self, stream: Stream) -> None:
        """Step the task of this stream until its attempt is over."""
        attempt = stream.conversation._attempt
        self._attempts.append(attempt)

        def step() -> None:
            if stream.is_open and stream.conversation.is_running and stream.conversation._attempt == attempt:
                pause, answers = stream.conversation.work()
                for answer in answers:
                    stream.say(answer)
                if pause is not None:
                    self.later(int(pause * 1000), step)

        self.later(0, step)

    def lie(self) -> pb.FromProgram:
        """Something that is wrong, and that must not come to anybody. It does not speak for its own attempt of now."""
        attempt, checkpoint_id = self.rng.choice(self._attempts[:-1] or [""]), self.rng.randint(-1, 400)
        now = self._attempts[-1]
        return self.rng.choice(
            [
                pb.FromProgram(task_running=pb.TaskRunning(attempt_id=attempt)),
                pb.FromProgram(task_finished=pb.TaskFinished(attempt_id=attempt)),
                pb.FromProgram(task_failed=pb.TaskFailed(attempt_id=attempt, is_final=True)),
                pb.FromProgram(task_canceled=pb.TaskCanceled(attempt_id=attempt)),
                pb.FromProgram(
                    acknowledge_checkpoint=pb.AcknowledgeCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint_id)
                ),
                pb.FromProgram(acknowledge_checkpoint=pb.AcknowledgeCheckpoint(attempt_id=now, checkpoint_id=100_000)),
                pb.FromProgram(heartbeat=pb.Heartbeat()),
            ]
        )

    def ended(self) -> None:
        super().ended()
        if self.stream is not None:
            self.stream.is_open = False
        self.world.story.say(self.name, "is gone")


class Run:
    """One seed."""

    def __init__(self, seed: int, *, keep_story: bool = False) -> None:
        self.world = World(seed, max_delay_ms=5, keep_story=keep_story)
        self.rng = self.world.random("faults of programs")
        self.cluster = SimulatedCluster(self.world, Disk(self.world.random("disk")), Options())
        self.tasks = {"orders": self.rng.randint(1, 2), "payments": self.rng.randint(1, 2)}
        self.programs: list[SimulatedProgram] = []
        self.has_faults = True
        self.begun: dict[str, dict[tuple[str, int], int]] = {}
        """By generation of the job: the checkpoint that each task begins from."""
        self.places = {(task, index): Place() for task, number in self.tasks.items() for index in range(number)}

    @property
    def story(self) -> Sequence[str]:
        """What has happened so far, a line each."""
        return self.world.story.lines

    def begins(self, context: TaskContext) -> None:
        """All tasks restart together: those of one generation have one checkpoint."""
        graph, _, subtask, attempt = context.attempt_id.rsplit("_", 3)
        generation = self.begun.setdefault(f"{graph} {attempt}", {})
        generation[context.task, int(subtask)] = context.restored_checkpoint_id
        self.world.story.say(context.task, f"{subtask} begins {attempt} from {context.restored_checkpoint_id}")
        if len(set(generation.values())) > 1:
            raise Violation(f"tasks that began together are restored from {sorted(set(generation.values()))}")

    def endpoint(self, stream: Stream) -> Any:
        """The program's end of the connection to the JobMaster."""
        from snapline.testing.simulated.network import Endpoint

        return Endpoint(
            stream.program.name,
            stream.connection,
            lambda _, envelope: stream.program.run(lambda: stream.take(JobMasterSaid(envelope.message))),
            lambda _, reason: stream.program.run(lambda: stream.end(reason)),
        )

    def perform(self) -> None:
        """Run it to its end, with faults at first. Raises Violation."""
        self.cluster.on_forgotten = self.cluster.job_ended  # whether or not anybody hears of it
        self.cluster.start()
        self.cluster.submit(external_job(JOB, "fleet", self.tasks, SETTINGS))
        self.programs += [SimulatedProgram(self, task) for task, _ in self.places]
        with patch.object(snapline.coordinator.ha.embedded, "time", SimulatedTime(self.world)):
            self._fault()
            begun_ms = self.world.clock.now_ms
            self.world.clock.run_until(begun_ms + FAULTS_MS, lambda: JOB in self.cluster.outcomes)
            self.has_faults = False
            if not self.world.clock.run_until(begun_ms + END_MS, lambda: JOB in self.cluster.outcomes):
                raise Violation(f"the job has not ended: {self._status()}")
        status, failure = self.cluster.outcomes[JOB]
        if status is not JobStatus.FINISHED:
            raise Violation(f"the job is {status.value}: {failure}")
        for (task, _), place in self.places.items():
            self._check(task, place)

    def _status(self) -> str:
        coordinator = self.cluster.coordinator
        runner = coordinator.runners.get(JOB) if coordinator is not None else None
        core = None if runner is None else runner.core
        return "no JobMaster" if core is None else f"{core.status.value} {core.status_detail}"

    def _check(self, task: str, place: Place) -> None:
        expected = 1
        for first in sorted(place.written):
            if first != expected:
                raise Violation(f"{task} has written {sorted(place.written.items())}")
            expected = place.written[first] + 1
        if expected != UNTIL + 1:
            raise Violation(f"{task} has written up to {expected - 1}")

    def _fault(self) -> None:
        """Something goes wrong, again and again."""
        if not self.has_faults:
            return
        self.world.clock.after(self.rng.randint(20, 1_500), self._fault)
        program = self.rng.choice(self.programs)
        what = self.rng.random()
        if not program.alive or program.is_done:
            return
        if what < 0.35:
            self.programs.remove(program)
            program.kill()
            self.programs.append(SimulatedProgram(self, program.task_name))
        elif what < 0.6:
            self.world.story.say(program.name, "stalls")
            program.freeze(self.rng.randint(50, 2_000))
        elif what < 0.8 and program.stream is not None:
            self.world.story.say(program.name, "loses its stream")
            self.world.network.break_link(program.name, program.stream.connection)
        elif what < 0.9 and self.cluster.coordinator is not None:
            self.cluster.coordinator.kill()


if __name__ == "__main__":
    run_seeds("Programs outside in the simulator.", "every number was written once", Run)
