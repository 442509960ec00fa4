"""The JobMaster's connection to the ResourceManager: registered again whenever it is lost, and told what the job needs.

Decides what to declare, and when: required slots and those held, again after every registration, not twice the same.
Keeps what the ResourceManager said last about what it cannot give. What a lost TaskManager means is decided in
`job_master`. Mirrors Flink's ResourceManagerConnection (of the JobMaster) and
DeclareResourceRequirementServiceConnectionManager.
"""

from __future__ import annotations

from typing import Any

from snapline.coordinator.execution.slot_pool import SlotPool
from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.messages import (
    DeclareRequiredSlots,
    Disconnect,
    HeartbeatRequest,
    HeartbeatResponse,
    NotEnoughResources,
    NotifyTaskManagerLost,
    RegisterJobMaster,
)
from snapline.runtime.cores.connections import CloseConnection, ConnectionID, OpenConnection, Peer, PeerKind, Send
from snapline.runtime.cores.leader_connection import LeaderConnection, LeaderConnectionEffect, LeaderSaid
from snapline.runtime.cores.machine import CancelTimer, StartTimer
from snapline.runtime.cores.registration import (
    Registered,
    RegistrationEvent,
    RegistrationFailed,
    RegistrationLost,
    RegistrationSettings,
    RegistrationTimedOut,
)

ResourceManagerConnectionEffect = (
    NotifyTaskManagerLost | OpenConnection | CloseConnection | Send | StartTimer | CancelTimer
)
"""NotifyTaskManagerLost: that one has ended, says the ResourceManager."""


class ResourceManagerConnection:
    """The registration of one JobMaster with the leading ResourceManager."""

    def __init__(self, registration: RegisterJobMaster, settings: RegistrationSettings) -> None:
        """Begin without a connection, because no leader is known yet."""
        self._job_id = registration.job_id
        self._leader = LeaderConnection("resource-manager", settings, registration, self._draw_connection)
        self._dialled = 0
        self._declared: DeclareRequiredSlots | None = None
        """What the ResourceManager that we are registered with was told last."""
        self.note = ""
        """What it said last about what it cannot give, until the job has that; to be added to a sentence."""

    def owns(self, event: object) -> bool:
        """Whether an event about a connection or timer is for this."""
        return self._leader.owns(event)

    def leader_changed(
        self, address: str, session: LeaderSessionID, now_ms: int
    ) -> list[ResourceManagerConnectionEffect]:
        """Register at the ResourceManager that leads now; an empty address says that none does."""
        peer = Peer(PeerKind.RESOURCE_MANAGER, address)
        return self._perform(self._leader.leader_changed(peer, session, now_ms), now_ms)

    def stop(self, now_ms: int) -> list[ResourceManagerConnectionEffect]:
        """End the registration and its timers; it does not register again."""
        return self._perform(self._leader.stop(), now_ms)

    def handle(self, event: RegistrationEvent, now_ms: int) -> list[ResourceManagerConnectionEffect]:
        """Take one event that this owns."""
        return self._perform(self._leader.handle(event, now_ms), now_ms)

    def send(self, message: Any) -> list[Send]:
        """Nothing, when we are not registered."""
        return self._leader.send(message)

    def declare(self, pool: SlotPool) -> list[Send]:
        """Say what is needed and held, unless the ResourceManager knows."""
        if self.note and not pool.missing:
            self.note = ""
        declared = self._declared
        if (
            declared is not None
            and declared.held is pool.held
            and (declared.required, declared.least) == (pool.required, pool.least)
        ):
            return []
        declaration = DeclareRequiredSlots(self._job_id, pool.required, pool.held, pool.least)
        if not self._leader.is_registered or declaration == declared:
            return []
        self._declared = declaration
        return self._leader.send(declaration)

    def _perform(self, effects: list[LeaderConnectionEffect], now_ms: int) -> list[ResourceManagerConnectionEffect]:
        out: list[ResourceManagerConnectionEffect] = []
        for effect in effects:
            match effect:
                case Registered():
                    self._declared = None
                case LeaderSaid(HeartbeatRequest()):
                    out += self._leader.send(HeartbeatResponse())
                case LeaderSaid(NotEnoughResources(_, required, available, reason)):
                    note = f"; the ResourceManager can give {available} of {required}"
                    self.note = f"{note}: {reason}" if reason else note
                case LeaderSaid(NotifyTaskManagerLost() as lost):
                    if lost.terminated or lost.heartbeat_timed_out:
                        out.append(lost)
                case LeaderSaid(Disconnect()):
                    out += self._perform(self._leader.reregister(now_ms), now_ms)
                case LeaderSaid() | RegistrationLost() | RegistrationTimedOut():
                    pass
                case RegistrationFailed(reason):
                    self.note = f"; the ResourceManager rejected the job: {reason}"
                case _:
                    out.append(effect)
        return out

    def _draw_connection(self) -> ConnectionID:
        self._dialled += 1
        return ConnectionID(f"dial-{self._dialled}")
