"""Gauges of a gateway as a whole, beside those of its models."""

from __future__ import annotations

from collections.abc import Callable, Sized

from firelane.gateway.batches.service import Batches
from firelane.telemetry.metrics import Registry


def add_gauges(
    registry: Registry,
    connections: Sized,
    batches: Batches,
    replacements: Callable[[], dict[str, float]],
) -> None:
    """Register them. replacements: processes that were replaced, by kind."""
    registry.gauge("firelane:http_connections", "Open connections.", lambda: len(connections))
    registry.gauge("firelane:batches_open", "Batches that have not ended.", lambda: batches.open)
    registry.gauge(
        "firelane:batch_requests_running", "Lines with the engine.", lambda: batches.lines_in_flight
    )
    registry.counts(
        "firelane:child_replacements",
        "Processes that were replaced because they died or hung.",
        "kind",
        replacements,
    )
