from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from firelane.telemetry import traces
from firelane.telemetry.otel import OtelTraces, connect
from firelane.telemetry.tracer import make_traces

NOW_S = 50.0
ATTRIBUTES = {"url.path": "/v1/completions", "http.response.status_code": 200, "firelane.tenant": "acme"}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def spans(times, headers=None, **attributes):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    OtelTraces(provider, lambda: NOW_S).ended(headers or {}, "req-1", times, {**ATTRIBUTES, **attributes})
    return {span.name: span for span in exporter.get_finished_spans()}


def times(planned_s=41.0, first_s=42.0, last_s=45.0):
    return traces.RequestTimes(40.0, 46.0, planned_s, first_s, last_s)


def test_a_request_has_its_phases_below_it():
    found = spans(times())
    assert set(found) == {"/v1/completions", "queue", "prefill", "decode"}
    root = found["/v1/completions"]
    seconds = {name: (span.end_time - span.start_time) / 1e9 for name, span in found.items()}
    assert seconds == pytest.approx({"/v1/completions": 6, "queue": 1, "prefill": 1, "decode": 3}, abs=1e-6)
    for name in ("queue", "prefill", "decode"):
        assert found[name].parent.span_id == root.context.span_id
    assert found["queue"].start_time == root.start_time
    assert root.attributes["firelane.request_id"] == "req-1"
    assert root.attributes["firelane.tenant"] == "acme"


def test_a_request_that_never_began():
    assert set(spans(times(0.0, 0.0, 0.0))) == {"/v1/completions", "queue"}


def test_errors_are_marked():
    (root,) = [s for s in spans(times(), **{"http.response.status_code": 503}).values() if s.parent is None]
    assert not root.status.is_ok


def test_the_callers_trace_goes_on():
    found = spans(times(), {b"traceparent": f"00-{TRACE}-{PARENT}-01".encode()})
    root = found["/v1/completions"]
    assert f"{root.context.trace_id:032x}" == TRACE
    assert f"{root.parent.span_id:016x}" == PARENT
    assert spans(times(), {b"traceparent": b"00-nonsense"})["/v1/completions"].parent is None
    assert not spans(times(), {b"traceparent": f"00-{TRACE}-{PARENT}-00".encode()})  # the caller samples none


def test_spans_arrive_at_a_collector():
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    sender = connect(f"http://127.0.0.1:{server.server_port}", lambda: NOW_S)
    sender.ended({}, "req-1", times(), ATTRIBUTES)
    sender.close()
    server.shutdown()
    thread.join()
    server.server_close()
    ((path, body),) = received
    assert path == "/v1/traces"
    assert b"prefill" in body
    assert b"firelane" in body


def test_off_costs_no_import():
    code = (
        "import sys; from firelane.telemetry.tracer import NO_TRACES, make_traces;"
        "assert make_traces(None, None) is NO_TRACES; import firelane.gateway.server;"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_absent_packages_are_named(monkeypatch):
    from firelane.errors import UsageError

    monkeypatch.setitem(sys.modules, "firelane.telemetry.otel", None)
    with pytest.raises(UsageError, match=r"firelane\[otel\]"):
        make_traces("", lambda: 0.0)
