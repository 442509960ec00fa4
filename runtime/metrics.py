"""Metrics for Prometheus, under Flink's names.

A figure is read off the cores when somebody scrapes, never pushed: a `MetricsSource` returns samples of that moment.
Names are Flink's, with its scopes (`jobmanager`, `jobmanager_job`, `taskmanager_job_task`) spelled as Flink's
Prometheus reporter spells them and `snapline` for `flink`: `snapline_jobmanager_job_lastCheckpointDuration{job_id,
job_name}`. The client library is imported when metrics are served, not before: most processes serve none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import Logger

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

PREFIX = "snapline"


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one scope."""

    scope: str
    """`jobmanager`, `jobmanager_job`, `taskmanager`, `taskmanager_job_task`, ..."""
    name: str
    """Flink's name of the figure, such as `numberOfCompletedCheckpoints`."""
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """Return the name under which Prometheus sees the figure."""
        return f"{PREFIX}_{self.scope}_{self.name}"


MetricsSource = Callable[[], Iterable[Sample]]


class MetricsServer:
    """Serves `/metrics` on a port of its own."""

    def __init__(self, source: MetricsSource, logger: Logger) -> None:
        self._source = source
        self._logger = logger
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises SnaplineError when the port is taken."""
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self._source, self._logger))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise SnaplineError(
                f"cannot serve metrics on {host}:{port}: {error.strerror}; choose another --metrics-port"
            ) from error
        return int(self._server.server_port)

    def stop(self) -> None:
        """Stop the server and its thread. Idempotent."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None


class _Collector:
    """What prometheus-client asks on each scrape."""

    def __init__(self, source: MetricsSource, logger: Logger) -> None:
        self._source = source
        self._logger = logger

    def collect(self) -> Iterable[Any]:
        """One gauge family per name. Figures that only rise are gauges too, as Flink reports them."""
        from prometheus_client.core import GaugeMetricFamily

        families: dict[str, Any] = {}
        try:
            samples = list(self._source())
        except Exception as error:  # a scrape must not end in a traceback for Prometheus
            self._logger.warning("metrics could not be read", reason=f"{type(error).__name__}: {error}")
            return []
        for sample in samples:
            family = families.get(sample.full_name)
            if family is None:
                family = families[sample.full_name] = GaugeMetricFamily(
                    sample.full_name, f"{sample.name} ({sample.scope})", labels=tuple(sample.labels)
                )
            family.add_metric(tuple(sample.labels.values()), sample.value)
        return families.values()
