"""Parts of a gateway that its handlers use, made once at the start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from firelane.child_process import Replacements
from firelane.gateway.batches.service import Batches
from firelane.gateway.bodies import Bodies
from firelane.gateway.conversations.turn import ConversationStores
from firelane.gateway.files.store import FileStore
from firelane.gateway.replies import Replies
from firelane.gateway.requests.control import NodeControl
from firelane.gateway.requests.metrics import ServerMetrics
from firelane.gateway.requests.models import Models
from firelane.gateway.requests.usage_log import UsageLog
from firelane.gateway.tenants.registry import Tenants


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
    files: FileStore
    batches: Batches
    control: NodeControl
    version: str
    now_s: Callable[[], float]
    created: int
    refresh: Callable[[], Awaitable[None]]
    replaced: Replacements
