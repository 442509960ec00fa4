"""Where the leading coordinator is, for whoever calls it: the settings say so, or say whom to ask.

ZooKeeper's client is loaded only if it is to be asked, because most calls of a command do without.
"""

from __future__ import annotations

from snapline.dataflow.config import COORDINATOR_ADDRESS, HA_TYPE, Configuration


def coordinator_address(configuration: Configuration) -> str:
    """Where the leading coordinator is: `jobmanager.rpc.address`, or what ZooKeeper says. Raises SnaplineError."""
    if configuration.get_option(HA_TYPE) != "zookeeper":
        return configuration.get_option(COORDINATOR_ADDRESS)
    from snapline.runtime.leaders.zookeeper_leader_retrieval import leading_coordinator

    return leading_coordinator(configuration)
