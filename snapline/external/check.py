"""The conformance suite for programs outside: `python -m snapline.external.check --address 127.0.0.1:7000`.

Who writes a client of protos/external.proto, in whatever language, runs this beside it. It listens at the address like
a coordinator that has one job and one task, waits for the program to register, and leads it through what a coordinator
does: checkpoints that complete, are aborted, follow closely; cancellations, restarts with state, broken streams,
messages of a later version, the end of the job. What the program says is judged by the core that judges it in a
coordinator. One line for each rule; exit code 0 when all hold.

With `--run "COMMAND"` it starts the program itself; `{address}` in the command stands for the address. With `--shape`
the task is a source, an operator or a sink of a dataflow (`check_rows`).
"""

from __future__ import annotations

import argparse
import queue
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pyarrow as pa

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
from snapline.dataflow.elements import AlignmentType, CheckpointOptions, SnapshotType
from snapline.dataflow.ids import (
    AllocationID,
    CheckpointID,
    ExecutionAttemptID,
    JobID,
    JobVertexID,
    ResourceID,
    operator_id_of,
)
from snapline.dataflow.snapshot.handles import EMPTY_TASK_STATE, TaskStateSnapshot
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    CancelTask,
    Disconnect,
    ExecutionState,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    OperatorDescriptor,
    RegistrationSuccess,
    SlotOffersAnswered,
    SubmitTasks,
    TaskDeploymentDescriptor,
    TaskStateChanged,
    TriggerCheckpoint,
)
from snapline.external.check_rows import RowsRuleBroken, RowsScript
from snapline.protos import external_pb2 as pb
from snapline.protos import external_pb2_grpc
from snapline.runtime.rpc.grpc_channels import SERVER_OPTIONS, STREAM_IS_OPEN
from snapline.runtime.version import VERSION

JOB, TASK = "conformance", "task"
JOB_ID = JobID("c" * 32)
SLOT = AllocationID("conformance")
MAX_STATE_BYTES = 1 << 20
HEARTBEAT_MS = 10_000
LOOK_S = 0.1
"""So often it is looked whether the program has ended before it has opened a stream."""
STREAMS = 8
"""So many streams may be open at once; a program has one."""


class RuleBroken(Exception):
    """The program has not done what the rule says; one line."""


class CheckImpossible(Exception):
    """The suite cannot begin; one line."""


@dataclass(eq=False)
class Stream:
    """One stream of the program, and what its judge lets through."""

    to_program: queue.SimpleQueue[pb.ToProgram | None] = field(default_factory=queue.SimpleQueue)
    from_program: queue.SimpleQueue[pb.FromProgram | None] = field(default_factory=queue.SimpleQueue)
    register: pb.Register = field(default_factory=pb.Register)
    heard: list[Any] = field(default_factory=list)
    """What a JobMaster would have heard, and no rule has asked for yet."""
    refusal: str = ""
    """Why the stream is broken off; empty: it is not."""
    judge: ExternalProgram = field(
        default_factory=lambda: ExternalProgram(
            ProgramIdentity(ResourceID("conformance"), lambda *_: SLOT, "", VERSION, MAX_STATE_BYTES)
        )
    )

    def take(self, event: ProgramEvent) -> None:
        """Let the judge decide. Raises RuleBroken for what a coordinator would complain about."""
        for effect in self.judge.handle(event):
            match effect:
                case TellProgram(message) if message.HasField("complaint"):
                    raise RuleBroken(f"a coordinator complains: {message.complaint.detail}")
                case TellProgram(message):
                    self.to_program.put(message)
                case TellJobMaster(message):
                    self.heard.append(message)
                case FindJob(job, task):
                    if (job, task) != (JOB, TASK):
                        raise RuleBroken(
                            f"it has to register as task {TASK!r} of job {JOB!r}, not as {task!r} of {job!r}"
                        )
                case EndProgram(reason, True):
                    raise RuleBroken(f"a coordinator ends the stream: {reason}")
                case EndProgram():
                    self.to_program.put(None)

    def break_off(self, reason: str) -> None:
        """End it as a coordinator does that goes away."""
        self.refusal = reason
        self.to_program.put(None)


class _Listener(external_pb2_grpc.ExternalTasksServicer):
    """Hands the streams of the program to the script, in the order in which they come."""

    def __init__(self) -> None:
        self.streams: queue.SimpleQueue[Stream] = queue.SimpleQueue()
        self._opened: list[Stream] = []

    def close(self) -> None:
        """End all streams that are still open."""
        for stream in list(self._opened):
            stream.to_program.put(None)

    def Participate(self, request_iterator: Iterator[pb.FromProgram], context: Any) -> Any:  # noqa: N802
        stream = Stream()
        self._opened.append(stream)

        def read() -> None:
            try:
                for message in request_iterator:
                    stream.from_program.put(message)
            except grpc.RpcError:
                pass  # the program is gone
            finally:
                stream.from_program.put(None)

        context.send_initial_metadata(STREAM_IS_OPEN)
        reading = ThreadPoolExecutor(1, "conformance-reader")
        reading.submit(read)
        reading.shutdown(wait=False)
        self.streams.put(stream)
        while (message := stream.to_program.get()) is not None:
            yield message
        if stream.refusal:
            context.abort(grpc.StatusCode.UNAVAILABLE, stream.refusal)


class Script:
    """The rules, in the order in which a program meets them."""

    def __init__(self, listener: _Listener, timeout: float, program: subprocess.Popen[bytes] | None) -> None:
        self._listener = listener
        self._program = program
        """What was started for this; None: nothing was."""
        self._timeout = timeout
        self._stream = Stream()
        self._attempts = 0
        self._checkpoints = 0
        self._state = EMPTY_TASK_STATE

    def rules(self) -> Sequence[tuple[str, Callable[[], None]]]:
        """Each rule and its trial; one builds on those before."""
        return (
            ("it registers first, and for its task", self._registers),
            ("it answers a heartbeat before it has an attempt", self._heartbeats),
            ("it begins an attempt without state, and says that it runs", self._runs),
            ("it answers a checkpoint, with state that a coordinator takes", self._checkpoint_completes),
            ("it takes no harm from a checkpoint that is aborted", self._checkpoint_is_aborted),
            ("it answers checkpoints that follow closely, each once", self._checkpoints_follow_closely),
            ("it answers heartbeats while it works", self._heartbeats),
            ("it ignores messages and fields of a later version", self._later_version),
            ("it ends an attempt that is cancelled, and keeps its stream", self._cancelled),
            ("it begins again with the state of its checkpoint", self._runs),
            ("it registers again when its stream breaks, and begins again", self._stream_breaks),
            ("it tries again when there is no place for it yet", self._no_place),
            ("it stops with a savepoint", self._stops),
            ("it hears that the job is over, and leaves", self._job_is_over),
        )

    # --- rules --------------------------------------------------------------------------------------------------------

    def _registers(self) -> None:
        self._new_stream()
        self._let_in()

    def _heartbeats(self) -> None:
        self._say(HeartbeatRequest())
        self._await("Heartbeat", lambda said: isinstance(said, HeartbeatResponse))

    def _runs(self) -> None:
        self._deploy()

    def _checkpoint_completes(self) -> None:
        for _ in range(3):
            self._state = self._acknowledged(self._trigger())
            self._complete()

    def _checkpoint_is_aborted(self) -> None:
        aborted = self._trigger()
        self._say(NotifyCheckpointAborted(JOB_ID, self._attempt, aborted, CheckpointID(0), 0))
        self._acknowledged(self._trigger())
        self._complete()

    def _checkpoints_follow_closely(self) -> None:
        triggered = [self._trigger() for _ in range(5)]
        for checkpoint_id in triggered:
            self._acknowledged(checkpoint_id)
        self._complete()

    def _later_version(self) -> None:
        unknown_kind, unknown_field = b"\xc2\x3e\x02\x08\x01", b"\x2a\x04\xc2\x3e\x01\x01"
        for message in (unknown_kind, unknown_field):
            self._stream.to_program.put(pb.ToProgram.FromString(message))
        self._stream.judge.handle(JobMasterSaid(HeartbeatRequest()))  # the second one was a heartbeat
        self._await("Heartbeat", lambda said: isinstance(said, HeartbeatResponse))
        self._acknowledged(self._trigger())

    def _cancelled(self) -> None:
        self._say(CancelTask(self._attempt))
        self._await_state(ExecutionState.CANCELED)

    def _stream_breaks(self) -> None:
        self._stream.break_off("the coordinator is going away")
        self._new_stream()
        self._let_in()
        self._deploy()
        self._acknowledged(self._trigger())

    def _no_place(self) -> None:
        self._stream.break_off("the coordinator is going away")
        self._new_stream()
        rejected = pb.Rejected(reason=pb.REJECTION_REASON_NO_PLACE, detail="one moment", try_again=True)
        self._stream.take(JobNotFound(rejected))
        self._new_stream()
        self._let_in()
        self._deploy()

    def _stops(self) -> None:
        self._acknowledged(self._trigger(SnapshotType.SAVEPOINT_SUSPEND))
        self._complete()
        self._await_state(ExecutionState.FINISHED)

    def _job_is_over(self) -> None:
        self._say(Disconnect("the job is FINISHED"))
        self.end_job()

    # --- the coordinator of a task with rows --------------------------------------------------------------------------

    def answer_registration(self, rejected: pb.Rejected) -> None:
        """Wait until the program registers, and send it on."""
        self._new_stream()
        self._stream.take(JobNotFound(rejected))

    def end_job(self) -> None:
        """Tell the program, when it registers again, that its job is over."""
        self._new_stream()
        self._stream.take(
            JobNotFound(pb.Rejected(reason=pb.REJECTION_REASON_JOB_IS_OVER, detail="the job is FINISHED"))
        )
        try:
            self._listener.streams.get(timeout=1.0)
        except queue.Empty:
            return
        raise RuleBroken("it registers once more, although it was told that the job is over")

    # --- steps --------------------------------------------------------------------------------------------------------

    @property
    def _attempt(self) -> ExecutionAttemptID:
        return ExecutionAttemptID("conformance", JobVertexID("0" * 32), 0, self._attempts)

    def _new_stream(self) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                self._stream = self._listener.streams.get(timeout=LOOK_S)
                break
            except queue.Empty:
                if self._program is not None and self._program.poll():
                    raise RuleBroken(f"it has ended with exit code {self._program.returncode}") from None
                if time.monotonic() > deadline:
                    raise RuleBroken(f"it has opened no stream within {self._timeout:g} s") from None
        self._hear(time.monotonic() + self._timeout)

    def _let_in(self) -> None:
        self._stream.take(JobFound(JOB_ID))
        self._say(RegistrationSuccess(HEARTBEAT_MS, 5 * HEARTBEAT_MS))
        self._say(SlotOffersAnswered(JOB_ID, (SLOT,), ()))
        self._stream.heard.clear()

    def _deploy(self) -> None:
        self._attempts += 1
        task = TaskDeploymentDescriptor(
            job_id=JOB_ID,
            job_name=JOB,
            attempt_id=self._attempt,
            allocation_id=SLOT,
            task_name=TASK,
            parallelism=1,
            max_parallelism=1,
            operators=(OperatorDescriptor(operator_id_of(TASK), TASK, TASK, b""),),
            input_gates=(),
            result_partitions=(),
            restore_checkpoint_id=CheckpointID(self._checkpoints if self._state.operators else 0),
            restore_state=self._state,
        )
        self._say(SubmitTasks((task,)))
        self._await_state(ExecutionState.RUNNING)

    def _trigger(self, kind: SnapshotType = SnapshotType.CHECKPOINT) -> CheckpointID:
        self._checkpoints += 1
        checkpoint_id = CheckpointID(self._checkpoints)
        options = CheckpointOptions(kind, AlignmentType.ALIGNED)
        self._say(TriggerCheckpoint(JOB_ID, self._attempt, checkpoint_id, int(time.time() * 1000), options))
        return checkpoint_id

    def _acknowledged(self, checkpoint_id: CheckpointID) -> TaskStateSnapshot:
        said = self._await(
            f"AcknowledgeCheckpoint of checkpoint {checkpoint_id}",
            lambda said: getattr(said, "checkpoint_id", None) == checkpoint_id,
        )
        if not isinstance(said, AcknowledgeCheckpoint):
            raise RuleBroken(f"it declines checkpoint {checkpoint_id}: {said.detail}")
        return said.state

    def _complete(self) -> None:
        self._say(NotifyCheckpointComplete(JOB_ID, self._attempt, CheckpointID(self._checkpoints), 0))

    def _say(self, message: Any) -> None:
        self._stream.take(JobMasterSaid(message))

    def _await_state(self, state: ExecutionState) -> None:
        self._await(
            f"that the attempt is {state.value}",
            lambda said: isinstance(said, TaskStateChanged) and said.state is state,
        )

    def _await(self, what: str, is_it: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + self._timeout
        while True:
            for said in self._stream.heard:
                failure = getattr(said, "failure", None)
                if failure is not None:
                    raise RuleBroken(f"its attempt has failed: {failure.summary}")
                if is_it(said):
                    self._stream.heard.remove(said)
                    return said
            if not self._hear(deadline):
                raise RuleBroken(f"it has not said {what} within {self._timeout:g} s")

    def _hear(self, deadline: float) -> bool:
        """Judge the next message of the program; False: none came in time."""
        try:
            message = self._stream.from_program.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return False
        if message is None:
            raise RuleBroken("it has closed its stream")
        self._stream.take(ProgramSaid(message))
        return True


class _WithRows:
    """The script of a program with rows, and the coordinator that sends it on and ends the job."""

    def __init__(self, coordinator: Script, shape: str, schema: pa.Schema, timeout: float) -> None:
        self._coordinator = coordinator
        self._script = RowsScript(shape, JOB_ID, TASK, schema, timeout)
        self._script.send_on = self._send_on

    def rules(self) -> Sequence[tuple[str, Callable[[], None]]]:
        """Those of rows, between the registration and the end of the job."""
        return (
            ("it registers first, and for its task", self._send_on),
            *self._script.rules(),
            ("it hears that the job is over, and leaves", self._job_is_over),
        )

    def close(self) -> None:
        """End the exchange that the program was sent to."""
        self._script.close()

    def _send_on(self) -> None:
        self._coordinator.answer_registration(self._script.rejected)

    def _job_is_over(self) -> None:
        self._script.leave()
        self._coordinator.end_job()


PATIENCE_WITH_TERM_SECONDS = 5
"""A program that has not ended so long after SIGTERM is ended by SIGKILL."""


def _words_of(command: str) -> list[str]:
    """Raises CheckImpossible for a command that cannot be run."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CheckImpossible(f"--run: {error}: {command}") from error
    if words and shutil.which(words[0]) is None:
        raise CheckImpossible(f"--run: there is no program {words[0]!r}")
    return words


def _schema_of(columns: str) -> pa.Schema:
    """Raises CheckImpossible for what is no list of columns."""
    try:
        fields = [each.split(":") for each in columns.split(",")]
        return pa.schema([(name.strip(), pa.type_for_alias(kind.strip())) for name, kind in fields])
    except ValueError as error:
        why = "say NAME:TYPE,NAME:TYPE" if "unpack" in str(error) else str(error)
        raise CheckImpossible(f"--columns {columns}: {why}") from error


def check(
    address: str,
    timeout: float,
    command: str = "",
    say: Callable[[str], object] = print,
    *,
    shape: str = "alone",
    columns: str = "key:int64,number:int64",
) -> bool:
    """Listen, lead a program through all rules, and say a line for each; whether all hold. The first one that is broken
    ends it, because the others build on it. Raises CheckImpossible."""
    schema, words = _schema_of(columns), _words_of(command)
    listener = _Listener()
    server = grpc.server(ThreadPoolExecutor(STREAMS, "conformance"), options=SERVER_OPTIONS)
    external_pb2_grpc.add_ExternalTasksServicer_to_server(listener, server)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise CheckImpossible(f"--address {address}: say host:port")
    try:
        address = f"{host}:{server.add_insecure_port(address)}"
    except RuntimeError as error:
        raise CheckImpossible(
            f"cannot listen at {address}: another process may, or this machine is not {host}"
        ) from error
    server.start()
    say(f"waiting at {address} for a program that registers as task {TASK!r} of job {JOB!r}")
    program = subprocess.Popen([each.replace("{address}", address) for each in words]) if words else None
    coordinator = Script(listener, timeout, program)
    with_rows = None if shape == "alone" else _WithRows(coordinator, shape, schema, timeout)
    script = with_rows or coordinator
    try:
        for rule, trial in script.rules():
            try:
                trial()
            except (RuleBroken, RowsRuleBroken) as broken:
                say(f"FAILED  {rule}: {broken}")
                return False
            say(f"ok      {rule}")
        return True
    finally:
        if with_rows is not None:
            with_rows.close()
        stopping = server.stop(0.2)
        listener.close()
        stopping.wait()
        if program is not None:
            program.terminate()
            try:
                program.wait(PATIENCE_WITH_TERM_SECONDS)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m snapline.external.check", description="Try a program outside.")
    parser.add_argument("--address", default="127.0.0.1:7000", help="where to listen, as host:port")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds that the program has for each answer")
    parser.add_argument(
        "--run", default="", metavar="COMMAND", help="start the program; {address} stands for the address"
    )
    parser.add_argument(
        "--shape", default="alone", choices=["alone", "source", "operator", "sink"], help="what the task is to its job"
    )
    parser.add_argument(
        "--columns",
        default="key:int64,number:int64",
        metavar="NAME:TYPE,...",
        help="the rows that an operator or a sink is given: Arrow types that hold whole numbers",
    )
    given = parser.parse_args(arguments)
    try:
        held = check(given.address, given.timeout, given.run, shape=given.shape, columns=given.columns)
    except CheckImpossible as why:
        parser.error(str(why))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
