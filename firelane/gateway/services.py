"""Parts of a gateway that its handlers use, made once at the start; whole answers of handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from firelane.child_process import Replacements
from firelane.gateway.batches.service import Batches
from firelane.gateway.bodies import Bodies
from firelane.gateway.conversations.turn import ConversationStores
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.files.store import FileStore
from firelane.gateway.http.exchange import JSON, Exchange
from firelane.gateway.requests.control import NodeControl
from firelane.gateway.requests.metrics import ServerMetrics
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.usage_log import UsageLog
from firelane.gateway.streams.kept_streams import KeptStreams
from firelane.gateway.tenants.registry import Tenants

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, kw_only=True)
class Services:
    """Owned by the Gateway. now_s: the monotonic clock, which frames are stamped with. created: Unix time of
    the start. refresh: has the metrics of a server's other processes brought up to date. replaced: child
    processes of this one that were lost.
    """

    models: Models
    tenants: Tenants
    usage: UsageLog
    metrics: ServerMetrics
    bodies: Bodies
    replies: Replies
    kept: ConversationStores
    streams: KeptStreams
    files: FileStore
    batches: Batches
    control: NodeControl
    version: str
    now_s: Callable[[], float]
    created: int
    refresh: Callable[[], Awaitable[None]]
    replaced: Replacements

    def engines(self) -> list[ReplicaSet]:
        """The engines of each model."""
        return [model.engines for model in self.models]


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
