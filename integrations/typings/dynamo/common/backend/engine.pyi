from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any

from dynamo._core import Context
from dynamo.common.backend.publisher import KvEventSource
from dynamo.common.backend.worker import WorkerConfig

GenerateRequest = dict[str, Any]
GenerateChunk = dict[str, Any]

class LlmRegistration:
    def __init__(
        self,
        *,
        context_length: int | None = None,
        kv_cache_block_size: int | None = None,
        total_kv_blocks: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
    ) -> None: ...

class EngineConfig:
    def __init__(
        self, *, model: str, served_model_name: str | None = None, llm: LlmRegistration | None = None
    ) -> None: ...

class LLMEngine(ABC):
    @classmethod
    @abstractmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[LLMEngine, WorkerConfig]: ...
    @abstractmethod
    async def start(self, worker_id: int) -> EngineConfig: ...
    @abstractmethod
    def generate(self, request: GenerateRequest, context: Context) -> AsyncGenerator[GenerateChunk]: ...
    async def abort(self, context: Context) -> None: ...
    @abstractmethod
    async def cleanup(self) -> None: ...
    async def kv_event_sources(self) -> list[KvEventSource]: ...
    def component_metrics_dp_ranks(self) -> list[int]: ...
    def attach_snapshot_publisher(self, publisher: Any) -> None: ...
    async def health_check_payload(self) -> dict[str, Any] | None: ...
