"""What a coordinator answers to jobs that it does not take, before its dispatcher hears of them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
import structlog

from snapline.coordinator.rpc import client_service
from snapline.coordinator.rpc.client_service import ClientService
from snapline.protos import client_pb2 as pb


class Aborted(Exception):
    """A call ends with a status."""


class Call:
    """The context of a call, which an abort ends."""

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        """End the call."""
        raise Aborted(code, text)


def test_a_job_that_nests_too_deeply_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own limit was a traceback of thousands of lines in the log."""

    def deep(job: object) -> object:
        return deep(job)

    monkeypatch.setattr(client_service, "translate_declared", deep)
    cluster: Any = object()
    service = ClientService(cluster, structlog.get_logger())
    with pytest.raises(Aborted) as raised:
        asyncio.run(service.SubmitDeclaredJob(pb.SubmitDeclaredJobRequest(), Call()))

    line = "the job is nested more deeply than can be: write it with fewer levels"
    assert (grpc.StatusCode.INVALID_ARGUMENT, line) == raised.value.args
