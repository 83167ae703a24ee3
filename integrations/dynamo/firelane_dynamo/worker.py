"""A Firelane engine as Dynamo sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from dynamo._core import Context
from dynamo.common.backend.engine import (
    EngineConfig,
    GenerateChunk,
    GenerateRequest,
    LLMEngine,
    LlmRegistration,
)
from dynamo.common.backend.health_check import build_health_check_payload
from dynamo.common.backend.publisher import ComponentSnapshot, KvEventSource, PushSource
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument, Unknown

from firelane.errors import EngineDeadError, FirelaneError, RequestError
from firelane.gateway.engines.link.watch import Deadlines
from firelane.gateway.engines.observer import ReplicaListener
from firelane.text.model_files import read_model_files
from firelane.wire.frames import Ready
from firelane_dynamo.chunks import Choices
from firelane_dynamo.kv_events import CacheRecord
from firelane_dynamo.local_engine import LocalEngine
from firelane_dynamo.options import WorkerOptions, read_options
from firelane_dynamo.requests import new_requests
from firelane_dynamo.snapshots import Snapshots

log = logging.getLogger(__name__)


class SnapshotPublisher(Protocol):
    """Dynamo's own."""

    def publish(self, dp_rank: int, snapshot: ComponentSnapshot, /) -> None: ...


class FirelaneEngine(LLMEngine):
    """One worker of Dynamo. Its engine process is made by `start`, and ended by `cleanup`."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._mode = options.worker.disaggregation_mode
        self._cache = CacheRecord()
        deadlines = Deadlines(silence_s=options.engine_timeout_s)
        self._engine = LocalEngine(options.engine, deadlines, self._cache, options.peers)
        self._defaults = read_model_files(options.engine.model_dir).defaults
        self._snapshots = Snapshots(self._publish)
        self._publisher: SnapshotPublisher | None = None
        self._running: dict[str, list[Choices]] = {}

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[FirelaneEngine, WorkerConfig]:
        options = await asyncio.to_thread(read_options, argv)
        return cls(options), options.worker

    async def start(self, worker_id: int) -> EngineConfig:
        """Raises EngineShutdown, with the reason for which there is no engine."""
        del worker_id
        try:
            listener = ReplicaListener(self._snapshots.on_ready, self._snapshots.on_frame)
            ready = await self._engine.start(listener)
        except FirelaneError as error:
            raise EngineShutdown(f"{error}") from error
        return EngineConfig(
            model=self._options.worker.model_name,
            served_model_name=self._options.worker.served_model_name,
            llm=_registration(ready, self._options),
        )

    async def generate(
        self, request: GenerateRequest, context: Context
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Chunks of tokens. Raises InvalidArgument for a request that cannot be served, and EngineShutdown,
        with which it goes on at another worker, where there is no engine any more."""
        same_id = self._running.setdefault(context.id(), [])  # clients may choose it, and twice the same
        choices: Choices | None = None
        try:
            choices = self._submit(request, context.id())
            same_id.append(choices)
            async for chunk in choices.chunks():
                if "finish_reason" in chunk and self._mode is DisaggregationMode.PREFILL:
                    chunk["disaggregated_params"] = {"engine": "firelane", **choices.handed_over()}
                yield chunk
        except FirelaneError as error:
            raise _raised(error) from error
        finally:
            if choices is not None:
                same_id.remove(choices)
                self._stop(choices)
            if not same_id:
                self._running.pop(context.id(), None)

    async def abort(self, context: Context) -> None:
        """The client has gone: its sequences end."""
        for choices in self._running.get(context.id(), []):
            choices.cancel()
            self._stop(choices)

    async def cleanup(self) -> None:
        await self._engine.close()

    async def kv_event_sources(self) -> list[KvEventSource]:
        """Return the source of the one cache's events; none where the router does not look for prefixes."""
        if self._mode is DisaggregationMode.DECODE or not self._options.engine.cache_events:
            return []
        return [PushSource(on_ready=self._cache.attach, dp_rank=0)]

    async def health_check_payload(self) -> dict[str, Any] | None:
        return build_health_check_payload(bos_token_id=0)

    def component_metrics_dp_ranks(self) -> list[int]:
        return [0]

    def attach_snapshot_publisher(self, publisher: SnapshotPublisher) -> None:
        self._publisher = publisher

    def _submit(self, request: GenerateRequest, request_id: str) -> Choices:
        replicas = self._engine.replicas
        new = new_requests(
            request,
            request_id,
            replicas.next_id,
            self._defaults,
            prefill_only=self._mode is DisaggregationMode.PREFILL,
        )
        choices = Choices(new)
        for one, choice in zip(new, choices.all, strict=True):
            replicas.submit(one, choice)
        return choices

    def _stop(self, choices: Choices) -> None:
        """The sequences of it that still run."""
        for choice in choices.all:
            self._engine.replicas.abort(choice.id)

    def _publish(self, used_blocks: int, total_blocks: int, hit_rate: float | None) -> None:
        if self._publisher is not None:
            snapshot = ComponentSnapshot(
                kv_used_blocks=used_blocks,
                kv_total_blocks=total_blocks,
                gpu_cache_usage=used_blocks / max(1, total_blocks),
                kv_cache_hit_rate=hit_rate,
                dp_rank=0,
            )
            self._publisher.publish(0, snapshot)


def _registration(ready: Ready, options: WorkerOptions) -> LlmRegistration:
    """Return the engine's sizes as the router counts them: all blocks are of one rank."""
    return LlmRegistration(
        context_length=ready.max_model_len,
        kv_cache_block_size=ready.block_size,
        total_kv_blocks=ready.num_blocks,
        max_num_seqs=ready.max_num_seqs,
        max_num_batched_tokens=options.engine.max_num_batched_tokens,
    )


def _raised(error: FirelaneError) -> Exception:
    """Dynamo's error, by which the frontend answers with a status or tries another worker."""
    if isinstance(error, EngineDeadError):
        return EngineShutdown(f"{error}")
    if isinstance(error, RequestError) and error.status < 500:
        return InvalidArgument(f"{error}")
    return Unknown(f"{error}")
