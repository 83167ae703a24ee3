"""OpenTelemetry traces: a span for each request, with its queue, prefill and decode below it, by OTLP/HTTP.

Spans are made when a request has ended, from the times that it noted anyway; another thread sends them.
Needs the extra `otel`, and is imported only where traces are wanted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from firelane import __version__
from firelane.telemetry.traces import RequestTimes

TRACES_PATH = "/v1/traces"
LAST_SPANS_S = 2.0
"""Seconds that the end of the server waits for a collector."""


class OtelTraces:
    """The Traces that go to a collector."""

    def __init__(self, provider: TracerProvider, now_s: Callable[[], float]) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("firelane", __version__)
        self._now_s = now_s
        self._parents = TraceContextTextMapPropagator()

    def ended(
        self,
        headers: Mapping[bytes, bytes],
        request_id: str,
        times: RequestTimes,
        attributes: Mapping[str, str | int],
    ) -> None:
        offset_ns = time.time_ns() - _ns(self._now_s())
        carrier = {
            name: headers[name.encode()].decode("ascii", "replace")
            for name in self._parents.fields
            if name.encode() in headers
        }
        request = self._tracer.start_span(
            str(attributes["url.path"]),
            context=self._parents.extract(carrier),
            kind=trace.SpanKind.SERVER,
            attributes={"firelane.request_id": request_id, **attributes},
            start_time=_ns(times.arrived_s) + offset_ns,
        )
        if int(attributes["http.response.status_code"]) >= 500:
            request.set_status(trace.StatusCode.ERROR)
        for name, begin_s, end_s in times.phases():
            span = self._tracer.start_span(
                name, context=trace.set_span_in_context(request), start_time=_ns(begin_s) + offset_ns
            )
            span.end(_ns(end_s) + offset_ns)
        request.end(_ns(times.ended_s) + offset_ns)

    def close(self) -> None:
        # A collector that does not answer must not keep the server from ending.
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(LAST_SPANS_S)


def connect(endpoint: str, now_s: Callable[[], float]) -> OtelTraces:
    """Traces to the collector at `endpoint`, "": where OpenTelemetry's own variables say."""
    if endpoint and not endpoint.endswith(TRACES_PATH):
        endpoint = endpoint.rstrip("/") + TRACES_PATH
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "firelane"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint or None)))
    return OtelTraces(provider, now_s)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
