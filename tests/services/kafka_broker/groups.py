"""Consumer groups: who is a member, which generation, who has which assignment. In memory only, as after a move of the
coordinator."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Any

from tests.services.kafka_broker.cluster import (
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    KafkaError,
)

FIRST_JOIN_MS = 100
"""So long the first member waits for others."""


@dataclass(slots=True)
class Member:
    """One consumer."""

    member_id: str
    protocols: list[tuple[str, bytes]]
    session_timeout_ms: int
    seen_ms: int
    joining: asyncio.Future[Any] | None = None
    syncing: asyncio.Future[Any] | None = None


@dataclass(slots=True)
class Group:
    """One group."""

    members: dict[str, Member] = field(default_factory=dict)
    expected: set[str] = field(default_factory=set)
    """Member ids that were given out."""
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    state: str = "Empty"
    assignments: dict[str, bytes] = field(default_factory=dict)
    deadline_ms: int = 0


class Groups:
    """All groups."""

    def __init__(self, now_ms: Any) -> None:
        self.now_ms = now_ms
        self._groups: dict[str, Group] = {}

    async def join(self, request: Any) -> tuple[Group, Member]:
        """Until all members are there."""
        group = self._groups.setdefault(request.group_id, Group())
        member_id = request.member_id
        if not member_id:
            member_id = f"member-{uuid.uuid4()}"
            if request.API_VERSION >= 4:
                group.expected.add(member_id)
                error = KafkaError(MEMBER_ID_REQUIRED)
                error.args = (member_id,)
                raise error
        elif member_id not in group.members and member_id not in group.expected:
            raise KafkaError(UNKNOWN_MEMBER_ID)
        group.expected.discard(member_id)
        protocols = [(each.name, bytes(each.metadata)) for each in request.protocols]
        now_ms = self.now_ms()
        member = group.members.get(member_id)
        if member is None:
            member = group.members[member_id] = Member(member_id, protocols, request.session_timeout_ms, now_ms)
        member.protocols, member.seen_ms = protocols, now_ms
        if group.state != "Joining":
            first = group.state == "Empty"
            self._rebalance(group)
            group.deadline_ms = now_ms + (FIRST_JOIN_MS if first else max(request.rebalance_timeout_ms, 1))
        member.joining = asyncio.get_running_loop().create_future()
        waiting = member.joining
        self._maybe_complete(group)
        await waiting
        return group, member

    def _rebalance(self, group: Group) -> None:
        group.state = "Joining"
        group.deadline_ms = self.now_ms() + 5_000
        for member in group.members.values():
            if member.syncing is not None and not member.syncing.done():
                member.syncing.set_exception(KafkaError(REBALANCE_IN_PROGRESS))

    def _maybe_complete(self, group: Group, *, timed_out: bool = False) -> None:
        joined = [m for m in group.members.values() if m.joining is not None]
        first = group.generation == 0
        if group.state != "Joining" or not (timed_out or (len(joined) == len(group.members) and not first)):
            return
        group.members = {m.member_id: m for m in joined}
        if not joined:
            group.state = "Empty"
            return
        group.generation += 1
        group.state = "Syncing"
        group.assignments = {}
        if group.leader not in group.members:
            group.leader = joined[0].member_id
        shared = set.intersection(*({name for name, _ in m.protocols} for m in joined))
        group.protocol = next(name for name, _ in joined[0].protocols if name in shared)
        for member in joined:
            waiting, member.joining = member.joining, None
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def _member(self, group_id: str, member_id: str, generation: int) -> tuple[Group, Member]:
        group = self._groups.get(group_id)
        if group is None or member_id not in group.members:
            raise KafkaError(UNKNOWN_MEMBER_ID)
        if generation != group.generation:
            raise KafkaError(ILLEGAL_GENERATION)
        member = group.members[member_id]
        member.seen_ms = self.now_ms()
        return group, member

    async def sync(self, request: Any) -> bytes:
        """The member's assignment, when the leader has said it."""
        group, member = self._member(request.group_id, request.member_id, request.generation_id)
        if group.state == "Joining":
            raise KafkaError(REBALANCE_IN_PROGRESS)
        if member.member_id == group.leader:
            group.assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
            group.state = "Stable"
            for other in group.members.values():
                if other.syncing is not None and not other.syncing.done():
                    other.syncing.set_result(None)
        elif group.state == "Syncing":
            member.syncing = asyncio.get_running_loop().create_future()
            await member.syncing
        return group.assignments.get(member.member_id, b"")

    def heartbeat(self, request: Any) -> None:
        """Raises when the member has to join again."""
        group, _ = self._member(request.group_id, request.member_id, request.generation_id)
        if group.state == "Joining":
            raise KafkaError(REBALANCE_IN_PROGRESS)

    def may_commit(self, group_id: str, member_id: str, generation: int) -> None:
        """Who is in no generation commits freely; a member only in the current one."""
        if generation >= 0:
            self._member(group_id, member_id, generation)
        elif (group := self._groups.get(group_id)) is not None and group.members:
            raise KafkaError(UNKNOWN_MEMBER_ID)

    def leave(self, group_id: str, member_ids: list[str]) -> None:
        """The others share what they had."""
        group = self._groups.get(group_id)
        if group is None:
            return
        for member_id in member_ids:
            group.members.pop(member_id, None)
        if group.members:
            self._rebalance(group)
            self._maybe_complete(group)
        else:
            group.state = "Empty"
            group.generation = 0

    def tick(self) -> None:
        """Members that are silent are gone; a rebalance does not wait for ever."""
        now_ms = self.now_ms()
        for group_id, group in self._groups.items():
            silent = [
                m.member_id
                for m in group.members.values()
                if m.joining is None and m.syncing is None and now_ms - m.seen_ms > m.session_timeout_ms
            ]
            if silent:
                self.leave(group_id, silent)
            if group.state == "Joining" and now_ms >= group.deadline_ms:
                self._maybe_complete(group, timed_out=True)
