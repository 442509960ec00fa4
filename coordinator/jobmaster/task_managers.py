"""The TaskManagers that are registered with one JobMaster: who they are and on which connection.

A table, nothing else; what registration and loss mean is decided in `job_master`. Mirrors the registeredTaskManagers
map of Flink's JobMaster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from snapline.dataflow.ids import ResourceID
from snapline.dataflow.wire.messages import TaskManagerInfo
from snapline.runtime.cores.connections import ConnectionID
from snapline.runtime.cores.machine import check


@dataclass(slots=True)
class RegisteredTaskManager:
    """One TaskManager that is registered with the JobMaster."""

    info: TaskManagerInfo
    connection: ConnectionID | None
    """None while the connection is broken and the TaskManager does not count as lost yet (see
    heartbeat.rpc-failure-threshold)."""


class TaskManagerTable:
    """The TaskManagers that are registered, by resource id and by connection."""

    def __init__(self) -> None:
        """Begin with no TaskManager registered."""
        self._by_resource: dict[ResourceID, RegisteredTaskManager] = {}
        self._by_connection: dict[ConnectionID, ResourceID] = {}

    def __iter__(self) -> Iterator[RegisteredTaskManager]:
        """All of them, longest registered first."""
        return iter(self._by_resource.values())

    def __contains__(self, resource_id: ResourceID) -> bool:
        """Return whether a TaskManager is registered."""
        return resource_id in self._by_resource

    def get(self, resource_id: ResourceID) -> RegisteredTaskManager | None:
        """The entry, if it is registered."""
        return self._by_resource.get(resource_id)

    def resource_of(self, connection: ConnectionID) -> ResourceID | None:
        """Who is on the connection."""
        return self._by_connection.get(connection)

    def connection_of(self, resource_id: ResourceID) -> ConnectionID | None:
        """Where to send to, None for nobody or a broken connection."""
        registered = self._by_resource.get(resource_id)
        return None if registered is None else registered.connection

    def exchange_address_of(self, resource_id: ResourceID) -> str:
        """Return the address of the TaskManager's data server, as host:port."""
        return self._by_resource[resource_id].info.exchange_address

    def host_of(self, resource_id: ResourceID) -> str:
        """The machine of the TaskManager; empty when it is not registered."""
        registered = self._by_resource.get(resource_id)
        return "" if registered is None else registered.info.host

    def add(self, info: TaskManagerInfo, connection: ConnectionID) -> None:
        """Add a TaskManager that has registered; an older entry must have been removed."""
        check(info.resource_id not in self._by_resource, f"{info.resource_id} is registered already")
        self._by_resource[info.resource_id] = RegisteredTaskManager(info, connection)
        self._by_connection[connection] = info.resource_id

    def connection_broken(self, connection: ConnectionID) -> None:
        """Keep the TaskManager of a broken connection registered, although it cannot be reached."""
        resource_id = self._by_connection.pop(connection)
        self._by_resource[resource_id].connection = None

    def remove(self, resource_id: ResourceID) -> RegisteredTaskManager | None:
        """Remove the TaskManager; returns its entry, None when there was none."""
        registered = self._by_resource.pop(resource_id, None)
        if registered is not None and registered.connection is not None:
            del self._by_connection[registered.connection]
        return registered
