"""A receiver of OTLP traces in this process: the service of OpenTelemetry's own descriptors, on a gRPC server.

It is no OpenTelemetry collector, of which no package can be installed here; what it decodes are the official messages,
as they come off the wire.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.services.cluster import wait_until


class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps all spans that come; a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> OtlpReceiver:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.stop(0).wait()

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        """As the exporter calls it."""
        with self._lock:
            for group in request.resource_spans:
                self.resources.append(attributes_of(group.resource))
                self._spans.extend(span for scope in group.scope_spans for span in scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, name: str, is_so: Callable[[Span], bool] = lambda _: True) -> Span:
        """The first span of this name that is so."""
        found: list[Span] = []

        def reached() -> bool:
            with self._lock:
                found.extend(span for span in self._spans if span.name == name and is_so(span))
            return bool(found)

        wait_until(reached, f"a span {name}")
        return found[0]


def attributes_of(holder: Any) -> dict[str, Any]:
    """Attributes of a span or resource as a dictionary."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in holder.attributes}
