"""Metrics for Prometheus, under Flink's names.

A figure is read off the cores when somebody scrapes, never pushed: a `MetricsSource` returns samples of that moment.
Counters get `_total` behind their names, as Prometheus asks. Names are Flink's, with its scopes (`jobmanager`,
`jobmanager_job`, `taskmanager_job_task`) spelled as Flink's Prometheus reporter spells them and `snapline` for `flink`:
`snapline_jobmanager_job_lastCheckpointDuration{job_id, job_name}`. The client library is imported when metrics are
served, not before: most processes serve none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import Logger
from snapline.runtime.metrics_endpoint import MetricsEndpoint
from snapline.runtime.rpc.security import Security

PREFIX = "snapline"


class Kind(Enum):
    """What a figure does: a counter only rises while what it is about lives, a gauge goes up and down."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one scope."""

    scope: str
    """`jobmanager`, `jobmanager_job`, `taskmanager`, `taskmanager_job_task`, ..."""
    name: str
    """Flink's name of the figure, such as `numberOfCompletedCheckpoints`."""
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = Kind.GAUGE
    help: str = ""
    """One sentence; empty: the name has to do."""

    @property
    def full_name(self) -> str:
        """Return the name under which Prometheus sees the figure."""
        return f"{PREFIX}_{self.scope}_{self.name}"


MetricsSource = Callable[[], Iterable[Sample]]
FamiliesSource = Callable[[], Iterable[Any]]


class MetricsServer:
    """Serves `/metrics` on a port of its own."""

    def __init__(
        self,
        source: MetricsSource,
        logger: Logger,
        families: FamiliesSource | None = None,
        security: Security = Security(),  # noqa: B008 - it is immutable
    ) -> None:
        """`families`: families of prometheus-client that are shown beside the samples. `security`: what whoever reads
        them has to show."""
        self._security = security
        self._source = source
        self._families = families
        self._logger = logger
        self._server: MetricsEndpoint | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises SnaplineError when the port is taken, or is none."""
        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

        from snapline.runtime.rpc.rpc_server import before_a_port  # loads gRPC

        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)  # CPU, memory and open files of this process
        registry.register(_Collector(self._source, self._logger))
        if self._families is not None:
            registry.register(_ReadyFamilies(self._families, self._logger))
        try:
            self._server = MetricsEndpoint(
                before_a_port(host).strip("[]"), port, make_wsgi_app(registry), self._security, self._logger
            )
        except (OSError, OverflowError) as error:
            raise SnaplineError(
                f"cannot serve metrics on {host}:{port}: {getattr(error, 'strerror', error)}; choose another --metrics-port"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="snapline-metrics", daemon=True)
        self._thread.start()
        return int(self._server.server_port)

    def stop(self) -> None:
        """Stop the server and its thread. Idempotent."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None


class _ReadyFamilies:
    """Families that somebody else has put together."""

    def __init__(self, families: FamiliesSource, logger: Logger) -> None:
        self._families = families
        self._logger = logger

    def collect(self) -> Iterable[Any]:
        """All of them, as of now."""
        try:
            return self._families()
        except Exception as error:  # a scrape must not end in a traceback for Prometheus
            self._logger.warning("metrics could not be read", reason=f"{type(error).__name__}: {error}")
            return []


class _Collector:
    """What prometheus-client asks on each scrape."""

    def __init__(self, source: MetricsSource, logger: Logger) -> None:
        self._source = source
        self._logger = logger

    def collect(self) -> Iterable[Any]:
        """One family per name, of the kind of its first sample; families of a name share their labels."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        try:
            samples = list(self._source())
        except Exception as error:  # a scrape must not end in a traceback for Prometheus
            self._logger.warning("metrics could not be read", reason=f"{type(error).__name__}: {error}")
            return []
        for sample in samples:
            family = families.get(sample.full_name)
            if family is None:
                make = CounterMetricFamily if sample.kind is Kind.COUNTER else GaugeMetricFamily
                help_text = sample.help or f"{sample.name} ({sample.scope})"
                family = families[sample.full_name] = make(sample.full_name, help_text, labels=tuple(sample.labels))
            family.add_metric(tuple(sample.labels.values()), sample.value)
        return families.values()
