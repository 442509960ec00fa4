"""Savepoints that clients have asked for, and what is kept of them."""

from __future__ import annotations

import asyncio

import pytest

from snapline.coordinator.rpc.savepoint_operations import MAX_ID, BadTriggerId, SavepointOperations
from snapline.protos import client_pb2 as pb


def test_a_request_that_is_repeated_joins_the_first_one() -> None:
    """One savepoint is taken, both are answered, and it can be asked for afterwards."""
    taken: list[str] = []

    async def take() -> pb.SavepointResponse:
        taken.append("once")
        return pb.SavepointResponse(path="savepoint-1")

    async def ask() -> list[str]:
        operations = SavepointOperations()
        answers = [await operations.run("job", "mine", take, detached=False) for _ in range(2)]
        found = operations.find("job", "mine")
        assert found is not None
        assert operations.find("another job", "mine") is None
        return [answer.path for answer in (*answers, found.result)]

    assert ["savepoint-1"] * 3 == asyncio.run(ask())
    assert ["once"] == taken


def test_an_id_that_is_too_long_begins_nothing() -> None:
    """A thousand ids are kept, so that a client must not choose one of megabytes."""
    taken: list[str] = []

    async def take() -> pb.SavepointResponse:
        taken.append("never")
        return pb.SavepointResponse()

    with pytest.raises(BadTriggerId, match=f"trigger_id may have {MAX_ID} characters, not {MAX_ID + 1}"):
        asyncio.run(SavepointOperations().run("job", "x" * (MAX_ID + 1), take, detached=True))
    assert taken == []
