from collections.abc import Callable
from typing import Any

class ComponentSnapshot:
    def __init__(
        self,
        *,
        kv_used_blocks: int,
        kv_total_blocks: int,
        gpu_cache_usage: float,
        dp_rank: int,
        kv_cache_hit_rate: float | None = None,
    ) -> None: ...

class KvEventPublisher:
    def publish_batch(self, events: list[dict[str, Any]]) -> None: ...

class ZmqSource:
    def __init__(self, endpoint: str, topic: str = "", dp_rank: int = 0) -> None: ...

class PushSource:
    def __init__(self, on_ready: Callable[[KvEventPublisher], None], dp_rank: int = 0) -> None: ...

KvEventSource = ZmqSource | PushSource
