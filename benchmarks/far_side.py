"""The far side of `benchmarks.coordinator`: many simulated TaskManagers in one process, each with gRPC streams of its
own.

They register, take every slot that they are asked for, say of every task that it runs, and acknowledge every checkpoint
of every task with empty state. All messages go through `snapline.dataflow.wire.codec`, as a real TaskManager's do;
there is nothing behind it.

    python -m benchmarks.far_side --coordinator HOST:PORT --task-managers 10 --slots 100 --name a
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from typing import Any

from snapline.dataflow.ids import AllocationID, ExecutionAttemptID, JobID, LeaderSessionID, ResourceID
from snapline.dataflow.wire.codec import decode_envelope, encode_envelope
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    CancelTask,
    ExecutionState,
    FreeSlot,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifySlotAvailable,
    OfferSlots,
    RegisterTaskExecutor,
    RegisterTaskExecutorAtJobMaster,
    RegistrationSuccess,
    RequestSlot,
    SlotOffer,
    SlotReport,
    SlotStatus,
    SubmitTasks,
    TaskManagerInfo,
    TaskStateChanged,
    TriggerCheckpoint,
)
from snapline.protos import cluster_pb2, cluster_pb2_grpc
from snapline.runtime.cores.credentials import Identity, Role
from snapline.runtime.rpc.dialing import MAX_MESSAGES_PER_ENVELOPE, relay_for
from snapline.runtime.rpc.grpc_channels import COORDINATOR_METADATA_KEY, open_aio_channel
from snapline.runtime.rpc.security import Security
from snapline.runtime.settings import default_layers, resolve
from snapline.runtime.version import VERSION

REGISTER_AT_ONCE = 20
"""TaskManagers that register at the same time."""
STARTING = (ExecutionState.INITIALIZING, ExecutionState.RUNNING)


class FarTaskManager:
    """One of the TaskManagers that are played here."""

    def __init__(self, name: str, slots: int, coordinator: str, security: Security, relay: str = "") -> None:
        self.info = TaskManagerInfo(ResourceID(name), "127.0.0.1:1", slots, VERSION, "127.0.0.1", 1)
        self.registered = asyncio.Event()
        self._coordinator = coordinator
        self._channel = open_aio_channel(relay or coordinator, security)
        token = security.acting_as(Identity(Role.TASK_MANAGER, name=name)).metadata
        self._metadata = (*token, *(((COORDINATOR_METADATA_KEY, coordinator),) if relay else ()))
        self._manager: Any = None
        self._session = LeaderSessionID("")
        self._masters: dict[JobID, Any] = {}
        self._allocations: dict[AllocationID, tuple[int, JobID]] = {}
        self._running: dict[JobID, dict[ExecutionAttemptID, None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- the ResourceManager ------------------------------------------------------------------------------------------

    async def run(self, session: LeaderSessionID) -> None:
        """Until the ResourceManager closes the stream."""
        self._session = session
        self._manager = cluster_pb2_grpc.ResourceManagerGatewayStub(self._channel).Connect(metadata=self._metadata)
        await self._tell_manager(RegisterTaskExecutor(self.info))
        async for envelope in self._manager:
            _, messages = decode_envelope(envelope)
            requests: dict[JobID, list[RequestSlot]] = {}
            for message in messages:
                if type(message) is RequestSlot:
                    requests.setdefault(message.job_id, []).append(message)
                elif type(message) is RegistrationSuccess:
                    await self._tell_manager(self._report())
                    self.registered.set()
                elif type(message) is HeartbeatRequest:
                    await self._tell_manager(HeartbeatResponse(self._report()))
                elif type(message) is FreeSlot:
                    await self._freed(message.allocation_id)
            for job_id, of_job in requests.items():
                await self._requested(job_id, of_job)

    def _report(self) -> SlotReport:
        taken = {slot: (job_id, allocation) for allocation, (slot, job_id) in self._allocations.items()}
        free = (JobID(""), AllocationID(""))
        return SlotReport(
            self.info.resource_id, tuple(SlotStatus(i, *taken.get(i, free)) for i in range(self.info.slots))
        )

    async def _tell_manager(self, message: Any) -> None:
        await self._manager.write(encode_envelope(self._session, [message]))

    async def _freed(self, allocation_id: AllocationID) -> None:
        taken = self._allocations.pop(allocation_id, None)
        if taken is not None:
            await self._tell_manager(NotifySlotAvailable(taken[0], allocation_id))

    # --- JobMasters ---------------------------------------------------------------------------------------------------

    async def _requested(self, job_id: JobID, requests: list[RequestSlot]) -> None:
        for request in requests:
            self._allocations[request.allocation_id] = (request.slot_number, job_id)
        session = requests[0].job_master_session
        offers = tuple(SlotOffer(request.allocation_id, request.slot_number) for request in requests)
        offer = OfferSlots(job_id, self.info.resource_id, offers)
        if job_id in self._masters:
            await self._masters[job_id].write(encode_envelope(session, [offer]))
            return
        call = self._masters[job_id] = cluster_pb2_grpc.JobMasterGatewayStub(self._channel).Connect(
            metadata=self._metadata
        )
        await call.write(encode_envelope(session, [RegisterTaskExecutorAtJobMaster(job_id, self.info), offer]))
        task = asyncio.create_task(self._serve_job(job_id, session, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_job(self, job_id: JobID, session: LeaderSessionID, call: Any) -> None:
        running = self._running.setdefault(job_id, {})
        async for envelope in call:
            answers = _answers(envelope, job_id, running)
            for first in range(0, len(answers), MAX_MESSAGES_PER_ENVELOPE):
                await call.write(encode_envelope(session, answers[first : first + MAX_MESSAGES_PER_ENVELOPE]))
        self._masters.pop(job_id, None)
        self._running.pop(job_id, None)
        for allocation in [a for a, (_, owner) in self._allocations.items() if owner == job_id]:
            await self._freed(allocation)


def _answers(envelope: cluster_pb2.Envelope, job_id: JobID, running: dict[ExecutionAttemptID, None]) -> list[Any]:
    _, messages = decode_envelope(envelope)
    answers: list[Any] = []
    for message in messages:
        if type(message) is TriggerCheckpoint:
            answers.append(AcknowledgeCheckpoint(job_id, message.attempt_id, message.checkpoint_id))
        elif type(message) is SubmitTasks:
            for task in message.tasks:
                running[task.attempt_id] = None
                answers += [TaskStateChanged(job_id, task.attempt_id, state) for state in STARTING]
        elif type(message) is HeartbeatRequest:
            answers.append(HeartbeatResponse(executions=tuple(running)))
        elif type(message) is CancelTask and message.attempt_id in running:
            del running[message.attempt_id]
            answers.append(TaskStateChanged(job_id, message.attempt_id, ExecutionState.CANCELED))
    return answers


async def leader_session(coordinator: str, security: Security) -> LeaderSessionID:
    """Return the leader session of the ResourceManager."""
    async with open_aio_channel(coordinator, security) as channel:
        stub = cluster_pb2_grpc.LeaderRetrievalStub(channel)
        async for table in stub.Watch(cluster_pb2.WatchLeadersRequest(), metadata=security.metadata):
            if table.resource_manager.address:
                return LeaderSessionID(table.resource_manager.leader_session_id)
    raise RuntimeError("the coordinator publishes no leader")


async def run_all(options: argparse.Namespace) -> None:
    """Register all, say so, and serve until the standard input ends."""
    security = Security.from_configuration(resolve(default_layers(os.environ)))
    session = await leader_session(options.coordinator, security)
    managers = [
        FarTaskManager(name, options.slots, options.coordinator, security, relay_for(ResourceID(name), options.relays))
        for name in (f"far-{options.name}-{i}" for i in range(options.task_managers))
    ]
    running = []
    for start in range(0, len(managers), REGISTER_AT_ONCE):
        group = managers[start : start + REGISTER_AT_ONCE]
        running += [asyncio.create_task(manager.run(session)) for manager in group]
        await asyncio.gather(*(manager.registered.wait() for manager in group))
    print("registered", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in running:
        task.cancel()


def main(arguments: list[str] | None = None) -> int:
    """Run until the standard input ends."""
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--coordinator", required=True)
    cli.add_argument("--task-managers", type=int, required=True)
    cli.add_argument("--slots", type=int, required=True)
    cli.add_argument("--name", required=True)
    cli.add_argument("--relays", default="", help="taskmanager.relay.addresses")
    gc.freeze()
    asyncio.run(run_all(cli.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
