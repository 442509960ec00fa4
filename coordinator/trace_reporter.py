"""Sends the spans of jobs to an OpenTelemetry collector by OTLP over gRPC (Flink: OpenTelemetryTraceReporter).

The packages of the extra `otlp` are loaded only when an endpoint is set. Spans leave in batches on a thread of the SDK;
when nobody takes them they are dropped, and a job never waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from snapline.coordinator.diagnosis.job_spans import Span
from snapline.dataflow.config import TRACES_OTEL_ENDPOINT, TRACES_OTEL_SERVICE_NAME, Configuration, ConfigurationError
from snapline.runtime.version import VERSION

NANOSECONDS_PER_MS = 1_000_000
TIMEOUT_SECONDS = 3
"""How long one batch may take; also how long the end of the coordinator waits for the last one."""


def open_trace_reporter(configuration: Configuration) -> TraceReporter | None:
    """The reporter that the settings ask for; None: they ask for none. Raises ConfigurationError."""
    endpoint = configuration.get_option(TRACES_OTEL_ENDPOINT)
    if not endpoint:
        return None
    if not _is_url(endpoint):
        raise ConfigurationError(
            f"{TRACES_OTEL_ENDPOINT.key} has to be a URL such as http://127.0.0.1:4317, not {endpoint!r}"
        )
    try:
        return TraceReporter(endpoint, configuration.get_option(TRACES_OTEL_SERVICE_NAME))
    except ImportError as error:
        raise ConfigurationError(
            f"{TRACES_OTEL_ENDPOINT.key} needs the extra otlp (pip install 'snapline[otlp]'): {error}"
        ) from error


def _is_url(endpoint: str) -> bool:
    """Whether the endpoint is a URL with a host, and with a port that can be or none."""
    try:
        parts = urlsplit(endpoint)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of brackets that do not close, and of a port beyond those that there are
        return False


class TraceReporter:
    """The spans of all jobs of one coordinator. Thread-safe."""

    def __init__(self, endpoint: str, service_name: str) -> None:
        """https: with TLS. Headers and certificates come from OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_...).
        Raises ImportError when the packages are missing."""
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(
            endpoint=endpoint, insecure=urlsplit(endpoint).scheme == "http", timeout=TIMEOUT_SECONDS
        )
        resource = Resource.create({"service.name": service_name, "service.version": VERSION})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("snapline", VERSION)

    def report(self, job_id: str, job_name: str, spans: Iterable[Span]) -> None:
        """Take them, and return at once."""
        from opentelemetry.trace import Status, StatusCode

        for span in spans:
            attributes = {"jobId": job_id, "jobName": job_name, **span.attributes}
            begun = self._tracer.start_span(
                span.name, start_time=span.begin_ms * NANOSECONDS_PER_MS, attributes=attributes
            )
            if span.error:
                begun.set_status(Status(StatusCode.ERROR, span.error))
            begun.end(end_time=max(span.begin_ms, span.end_ms) * NANOSECONDS_PER_MS)

    def close(self) -> None:
        """Send what waits, then end."""
        self._provider.shutdown()
