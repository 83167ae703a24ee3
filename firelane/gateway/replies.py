"""Whole answers of handlers, counted in the server's metrics."""

from __future__ import annotations

from typing import Any

import msgspec

from firelane.gateway.http.exchange import JSON, Exchange
from firelane.gateway.requests.metrics import ServerMetrics

_encode = msgspec.json.Encoder().encode


class Replies:
    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics

    def json(self, exchange: Exchange, answer: Any, status: int = 200, *, headers: bytes = b"") -> None:
        self.send(exchange, _encode(answer), status, headers=headers)

    def send(
        self,
        exchange: Exchange,
        body: bytes,
        status: int = 200,
        *,
        content_type: bytes = JSON,
        headers: bytes = b"",
    ) -> None:
        self._metrics.responded(status)
        exchange.respond(status, body, content_type=content_type, headers=headers)
