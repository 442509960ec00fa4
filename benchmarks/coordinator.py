"""The coordinator alone: no-op subtasks on fake TaskManagers over real gRPC, from trigger to complete.

One coordinator process; in this process a gRPC client per fake TaskManager on one asyncio loop, which registers, offers its
slots, reports its tasks as running, and acknowledges every checkpoint at once, without state. Measured from outside:
wall time of each checkpoint as the coordinator counts it, and CPU time of the coordinator's process per subtask and
checkpoint. The far side runs on the same cores.

    python -m benchmarks.coordinator [--subtasks 1000 10000] [--task-managers 10 100 500] [--checkpoints 10] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks.cluster import versions
from coordinator.process import CoordinatorProcess
from dataflow.ids import ExecutionAttemptID, JobID, JobVertexID, LeaderSessionID, OperatorID, ResourceID
from dataflow.jobgraph import JobGraph, JobVertex, OperatorNode
from dataflow.messages import (
    AcknowledgeCheckpoint,
    ExecutionState,
    HeartbeatRequest,
    HeartbeatResponse,
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
from dataflow.wire import decode_envelope, encode_envelope
from protos import cluster_pb2, cluster_pb2_grpc
from runtime.grpc_channels import CHANNEL_OPTIONS, Security
from runtime.version import VERSION
from snapline.client import ClusterClient

PATIENCE_SECONDS = 120.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class FakeTaskManager:
    """Says what a TaskManager says, and runs nothing."""

    def __init__(self, number: int, slots: int, channel: grpc.aio.Channel, address: str, session: str) -> None:
        self.resource_id = ResourceID(f"fake-{number}-{uuid.uuid4().hex[:8]}")
        self.slots = [SlotStatus(slot) for slot in range(slots)]
        self.info = TaskManagerInfo(self.resource_id, f"127.0.0.1:{number + 1}", slots, VERSION, "localhost", number)
        self._channel = channel
        self._address = address
        self._session = LeaderSessionID(session)
        self._tasks: list[ExecutionAttemptID] = []
        self._resource_manager: Any = None
        self._job_master: Any = None
        self._job_master_registered = False
        self._job_session = LeaderSessionID("")
        self._offers: list[SlotOffer] = []
        self._job_id = JobID("")
        self._following: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Register at the ResourceManager and do as it says."""
        stub: Any = cluster_pb2_grpc.ResourceManagerGatewayStub(self._channel)
        self._resource_manager = stub.Connect()
        await self._tell(self._resource_manager, self._session, [RegisterTaskExecutor(self.info)])
        while True:
            envelope = await self._resource_manager.read()
            if envelope is grpc.aio.EOF:
                return
            requested = False
            for message in decode_envelope(envelope)[1]:
                match message:
                    case RegistrationSuccess():
                        report = SlotReport(self.resource_id, tuple(self.slots))
                        await self._tell(self._resource_manager, self._session, [report])
                    case RequestSlot():
                        slot, job, allocation = message.slot_number, message.job_id, message.allocation_id
                        self.slots[slot] = SlotStatus(slot, job, allocation)
                        self._offers.append(SlotOffer(allocation, slot))
                        self._job_id, self._job_session = job, message.job_master_session
                        requested = True
                    case HeartbeatRequest():
                        report = SlotReport(self.resource_id, tuple(self.slots))
                        await self._tell(self._resource_manager, self._session, [HeartbeatResponse(report)])
            if requested:
                await self._offer()

    async def _offer(self) -> None:
        if self._job_master is None:
            stub: Any = cluster_pb2_grpc.JobMasterGatewayStub(self._channel)
            self._job_master = stub.Connect()
            register = RegisterTaskExecutorAtJobMaster(self._job_id, self.info)
            await self._tell(self._job_master, self._job_session, [register])
            self._following = asyncio.create_task(self._follow_job_master())
        elif self._job_master_registered:
            await self._send_offers()

    async def _send_offers(self) -> None:
        offers, self._offers = tuple(self._offers), []
        if offers:
            await self._say([OfferSlots(self._job_id, self.resource_id, offers)])

    async def _follow_job_master(self) -> None:
        while True:
            envelope = await self._job_master.read()
            if envelope is grpc.aio.EOF:
                return
            answers: list[Any] = []
            for message in decode_envelope(envelope)[1]:
                match message:
                    case TriggerCheckpoint():
                        answers.append(AcknowledgeCheckpoint(message.job_id, message.attempt_id, message.checkpoint_id))
                    case RegistrationSuccess():
                        self._job_master_registered = True
                        await self._send_offers()
                    case SubmitTasks(tasks):
                        for task in tasks:
                            self._tasks.append(task.attempt_id)
                            answers.append(TaskStateChanged(task.job_id, task.attempt_id, ExecutionState.RUNNING))
                    case HeartbeatRequest():
                        mine = tuple(slot for slot in self.slots if slot.job_id == self._job_id)
                        report = SlotReport(self.resource_id, mine)
                        answers.append(HeartbeatResponse(report, executions=tuple(self._tasks)))
            if answers:
                await self._say(answers)

    async def _say(self, messages: list[Any]) -> None:
        await self._tell(self._job_master, self._job_session, messages)

    @staticmethod
    async def _tell(stream: Any, session: LeaderSessionID, messages: list[Any]) -> None:
        await stream.write(encode_envelope(session, messages))


class FarSide:
    """All fake TaskManagers, on a thread with one loop."""

    def __init__(self, address: str, task_managers: int, subtasks: int) -> None:
        self._address = address
        self._slots = [subtasks // task_managers + (n < subtasks % task_managers) for n in range(task_managers)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> FarSide:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        async with grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS) as channel:
            stub: Any = cluster_pb2_grpc.LeaderRetrievalStub(channel)
            async for table in stub.Watch(cluster_pb2.WatchLeadersRequest()):
                session = table.resource_manager.leader_session_id
                break
        self._channels = []
        self._tasks = []
        for number, slots in enumerate(self._slots):
            channel = grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
            self._channels.append(channel)
            manager = FakeTaskManager(number, slots, channel, self._address, session)
            self._tasks.append(asyncio.create_task(manager.run()))

    async def _stop(self) -> None:
        for channel in self._channels:
            await channel.close()
        leftover = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in leftover:
            task.cancel()
        await asyncio.gather(*leftover, return_exceptions=True)


def no_op_job(subtasks: int) -> JobGraph:
    """One vertex, all sources."""
    operator = OperatorNode(OperatorID("a" * 32), "no-op", "no-op", b"", is_source=True)
    vertex = JobVertex(JobVertexID("a" * 32), "no-op", subtasks, 32_768, (operator,))
    configuration = {
        "execution.checkpointing.timeout": "60 s",
        "web.checkpoints.history": "1000",
        "restart-strategy.type": "none",
    }
    return JobGraph(JobID(uuid.uuid4().hex), "coordinator benchmark", (vertex,), (), configuration)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def measure(subtasks: int, task_managers: int, checkpoints: int) -> dict[str, Any]:
    """One size."""
    directory = tempfile.mkdtemp(prefix="snapline-benchmark-")
    settings = {
        "execution.checkpointing.dir": directory,
        "heartbeat.interval": "30 s",
        "heartbeat.timeout": "120 s",
    }
    coordinator = CoordinatorProcess.start(settings=settings)
    try:
        client = ClusterClient(coordinator.address, Security())
        with client, FarSide(coordinator.address, task_managers, subtasks):
            while client.overview().task_managers < task_managers:
                time.sleep(0.1)
            begun = time.monotonic()
            job_id = client.submit(no_op_job(subtasks))
            while client.get_job(job_id).overview.subtasks_by_state.get("RUNNING", 0) < subtasks:
                if time.monotonic() - begun > PATIENCE_SECONDS:
                    raise SystemExit(f"the job does not come up: {client.get_job(job_id).overview}")
                time.sleep(0.1)
            deployed = time.monotonic() - begun
            client.trigger_checkpoint(job_id)  # the first one warms up
            cpu_before, wall = cpu_seconds(coordinator.pid), []
            for _ in range(checkpoints):
                at = time.monotonic()
                client.trigger_checkpoint(job_id)
                wall.append((time.monotonic() - at) * 1000)
            cpu = cpu_seconds(coordinator.pid) - cpu_before
            client.cancel(job_id)
    finally:
        coordinator.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "subtasks": subtasks,
        "task_managers": task_managers,
        "deployed_s": round(deployed, 2),
        "trigger_to_complete_ms": {
            "median": round(statistics.median(wall), 1),
            "max": round(max(wall), 1),
            "n": len(wall),
        },
        "coordinator_cpu_us_per_subtask": round(cpu / checkpoints / subtasks * 1e6, 1),
    }


def _measure_apart(subtasks: int, task_managers: int, checkpoints: int) -> dict[str, Any]:
    """In a process of its own: gRPC's asyncio side does not outlive its loop well."""
    sizes = ["--subtasks", str(subtasks), "--task-managers", str(task_managers), "--checkpoints", str(checkpoints)]
    command = [sys.executable, "-m", "benchmarks.coordinator", "--apart", *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"benchmark: {done.stderr.strip().splitlines()[-1] if done.stderr else 'failed'}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subtasks", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--task-managers", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.apart:
        print(json.dumps(measure(options.subtasks[0], options.task_managers[0], options.checkpoints)))
        return 0
    results = []
    for subtasks in options.subtasks:
        for task_managers in options.task_managers:
            result = _measure_apart(subtasks, task_managers, options.checkpoints)
            results.append(result)
            if not options.json:
                took = result["trigger_to_complete_ms"]
                print(
                    f"{subtasks:>7,} subtasks on {task_managers:>4} TaskManagers: trigger to complete "
                    f"{took['median']:>7} ms median, {took['max']:>7} ms max; "
                    f"{result['coordinator_cpu_us_per_subtask']:>5} us of coordinator CPU per subtask",
                    flush=True,
                )
    if options.json:
        print(json.dumps({"results": results, "versions": versions()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
