"""What a coordinator answers to jobs that it does not take, before its dispatcher hears of them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
import structlog

from snapline.coordinator.jobmaster.operations import Answer, OperationFailed
from snapline.coordinator.rpc import client_service
from snapline.coordinator.rpc.client_service import ClientService
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.declared_payload import LoadingRules, translate_declared
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.codec import encode_job_graph
from snapline.protos import client_pb2 as pb
from tests.unit.snapline.declared.declared_jobs import job, sink, source


class Aborted(Exception):
    """A call ends with a status."""


class Call:
    """The context of a call, which an abort ends."""

    def invocation_metadata(self) -> tuple[()]:
        """Return nothing: the client does not say who it is."""
        return ()

    def peer(self) -> str:
        """Return where the client is."""
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        """End the call."""
        raise Aborted(code, text)


def test_a_job_that_nests_too_deeply_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own limit was a traceback of thousands of lines in the log."""

    def deep(*given: object) -> object:
        return deep(*given)

    monkeypatch.setattr(client_service, "translate_declared", deep)
    cluster: Any = object()
    service = ClientService(cluster, structlog.get_logger())
    with pytest.raises(Aborted) as raised:
        asyncio.run(service.SubmitDeclaredJob(pb.SubmitDeclaredJobRequest(), Call()))

    line = "the job is nested more deeply than can be: write it with fewer levels"
    assert (grpc.StatusCode.INVALID_ARGUMENT, line) == raised.value.args


def test_a_declaration_in_a_job_graph_is_refused() -> None:
    """Whoever wrote the graph himself had it run without a check of what the declaration names."""
    cluster: Any = object()
    service = ClientService(cluster, structlog.get_logger())
    graph = encode_job_graph(translate_declared(job(source(), sink("orders"))))
    with pytest.raises(Aborted) as raised:
        asyncio.run(service.SubmitJob(pb.SubmitJobRequest(job_graph=graph), Call()))

    line = "operator 'orders-splits' is declared, and nobody has looked at the declaration: submit it with SubmitDeclaredJob"
    assert (grpc.StatusCode.INVALID_ARGUMENT, line) == raised.value.args


def test_a_refusal_repeats_a_part_of_what_was_sent() -> None:
    """A megabyte of a name was a line of the log."""
    cluster: Any = object()
    service = ClientService(cluster, structlog.get_logger())
    declared = job(source(name="x" * 100_000), sink("orders"))
    with pytest.raises(Aborted) as raised:
        asyncio.run(service.SubmitDeclaredJob(pb.SubmitDeclaredJobRequest(job=declared), Call()))

    assert client_service.MAX_REFUSAL + 3 == len(raised.value.args[1])


def test_a_module_that_jobs_may_not_name_is_refused_at_submission() -> None:
    """By the rules of the coordinator, in one line that names the operator."""
    cluster: Any = object()
    service = ClientService(cluster, structlog.get_logger(), LoadingRules(takes_pickles=False))
    declared = job(source(name="subprocess:getoutput"), sink("orders"))
    with pytest.raises(Aborted) as raised:
        asyncio.run(service.SubmitDeclaredJob(pb.SubmitDeclaredJobRequest(job=declared), Call()))

    line = (
        "declared operator 'orders': 'subprocess:getoutput': declared jobs may not name what is in module 'subprocess' here; put it into "
        "security.declared-modules of coordinators and TaskManagers, if it may be"
    )
    assert (grpc.StatusCode.INVALID_ARGUMENT, line) == raised.value.args


class CannotStore:
    """A coordinator that is storing the job of the first request, and will not be able to."""

    async def has_started(self, job_id: JobID) -> bool:
        """Whether the job has been stored and started."""
        return False

    async def leads(self) -> bool:
        """Lead."""
        return True

    async def submit(self, job_graph: JobGraph) -> Answer:
        """Answer as the first request is answered."""
        return OperationFailed(SerializedFailure("the job could not be stored", Blame.EXTERNAL, retryable=True))


def test_a_job_is_not_accepted_before_it_is_stored_however_often_it_is_declared() -> None:
    """A client that asked again after its deadline took a job for accepted that then could not be stored."""
    cluster: Any = CannotStore()
    service = ClientService(cluster, structlog.get_logger())
    declared = job(source(), sink("orders"), jobId="ab" * 16)
    with pytest.raises(Aborted, match="the job could not be stored"):
        asyncio.run(service.SubmitDeclaredJob(pb.SubmitDeclaredJobRequest(job=declared), Call()))
