"""The choice of the tracer that a server was asked for."""

from __future__ import annotations

from collections.abc import Callable

from firelane.errors import UsageError
from firelane.telemetry.traces import NO_TRACES, Traces


def make_traces(endpoint: str | None, now_s: Callable[[], float]) -> Traces:
    """None: no traces. "": where OpenTelemetry's own variables say. Raises UsageError where they are wanted
    but the packages are not installed.
    """
    if endpoint is None:
        return NO_TRACES
    try:
        from firelane.telemetry.otel import connect
    except ImportError as error:
        raise UsageError(
            f"traces need OpenTelemetry ({error.name} is not installed): pip install 'firelane[otel]'"
        ) from None
    return connect(endpoint, now_s)
