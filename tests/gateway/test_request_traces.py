"""Traces of requests, as a collector in memory sees them."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from firelane.telemetry.otel import OtelTraces

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SKEW_NS = 60 * 10**9
"""Between two clocks that are read one after the other, on a machine that does other things in between."""


@pytest.fixture
def collected(service):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    service.gateway.services.usage._traces = OtelTraces(provider, time.monotonic)
    return exporter


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_is_one_trace(service, collected, stream):
    before_ns = time.time_ns()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    body = {"prompt": "say", "max_tokens": 5, "stream": stream}
    assert service.http.post("/v1/completions", json=body, headers=headers).status_code == 200
    found = {span.name: span for span in collected.get_finished_spans()}
    assert set(found) == {"/v1/completions", "queue", "prefill", "decode"}
    root = found["/v1/completions"]
    assert {f"{span.context.trace_id:032x}" for span in found.values()} == {TRACE}
    assert f"{root.parent.span_id:016x}" == PARENT
    assert root.attributes["firelane.request_id"] == "mine"
    assert root.attributes["gen_ai.usage.output_tokens"] == 5
    assert root.attributes["gen_ai.response.finish_reason"] == "length"
    assert before_ns - SKEW_NS <= root.start_time <= root.end_time <= time.time_ns() + SKEW_NS
    order = [found[name].start_time for name in ("queue", "prefill", "decode")]
    assert order == sorted(order)
    assert root.end_time >= found["decode"].end_time


def test_a_client_that_left_is_in_it(service, collected):
    service.run(setattr, service.engine, "held", True)

    def leave():
        service.wait_for(lambda: bool(service.engine.running))
        service.run(service.gateway._connections.abort_all)

    thread = threading.Thread(target=leave)
    thread.start()
    with pytest.raises(httpx.TransportError):
        service.http.post("/v1/completions", json={"prompt": "a"})
    thread.join()
    service.wait_for(lambda: len(collected.get_finished_spans()) == 2)
    root = next(span for span in collected.get_finished_spans() if span.name != "queue")
    assert root.attributes["http.response.status_code"] == 499
