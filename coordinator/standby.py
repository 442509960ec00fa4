"""A coordinator that stands by: it is alive and says so, and it does nothing else.

Health checks of `live`, and of the server as a whole, are answered with SERVING, those of a leader's services with
NOT_SERVING; `/metrics` shows the process and `isLeader 0`; calls are refused with who leads. It listens where the
coordinator will listen when it leads, so it has to stop before that one starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.coordinator.metric_table import sample
from snapline.coordinator.rpc.refused_calls import add_refusals
from snapline.dataflow.config import COORDINATOR_BIND_HOST
from snapline.runtime.logs import Logger
from snapline.runtime.metrics import MetricsServer
from snapline.runtime.rpc.rpc_server import RpcServer
from snapline.runtime.rpc.security import Security, check_secret


class Standby:
    """The servers of a coordinator while another one leads; `start` and `stop` may alternate."""

    def __init__(self, config: CoordinatorConfig, find_leader: Callable[[], str], logger: Logger) -> None:
        """`find_leader` returns host:port of the coordinator that leads now; it may block, and raise SnaplineError."""
        self._config = config
        self._find_leader = find_leader
        self._logger = logger
        self._server: RpcServer | None = None
        self._metrics: MetricsServer | None = None

    def start(self) -> str:
        """Answer from now on; returns host:port. Idempotent. Raises SnaplineError when a port is taken."""
        if self._server is not None:
            return self._server.address
        configuration = self._config.configuration
        security = Security.from_configuration(configuration)
        check_secret(security)
        server = RpcServer(security, self._logger)
        bind_host = configuration.get_option(COORDINATOR_BIND_HOST)
        address = server.start(
            self._config.bind, partial(add_refusals, find_leader=self._find_leader), bind_host, leads=False
        )
        self._server = server
        port = -1
        if self._config.metrics_port >= 0:
            self._metrics = MetricsServer(
                lambda: [sample("jobmanager", "isLeader", 0)], self._logger, security=security
            )
            try:
                port = self._metrics.start(bind_host or address.rpartition(":")[0], self._config.metrics_port)
            except BaseException:
                self.stop()  # the next try begins with nothing
                raise
        self._logger.info("standby answers", address=address, metrics_port=port)
        return address

    def stop(self) -> None:
        """Stop to answer, and free the ports. Idempotent."""
        server, self._server = self._server, None
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            metrics.stop()
        if server is not None:
            server.stop()
