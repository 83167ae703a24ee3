"""KV cache events as vLLM sends them: a batch is a msgpack array, an event a map that is tagged `type`
(vllm/distributed/kv_events.py, since vllm-project/vllm#42892). Fields and their order are that contract."""

from __future__ import annotations

import sys
from array import array

import msgspec

from firelane.wire.cache_events import BlocksCleared, BlocksRemoved, CacheEvent
from firelane.wire.cache_events import BlocksStored as Stored


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """ts: Unix time. data_parallel_rank: number of the engine."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class BlockStored(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """extra_keys: for each block what beside tokens is part of its name, or None: here the id of a tenant's
    salt, in the first block of a chain, from which the others follow."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None


class BlockRemoved(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BatchEncoder:
    """Payloads of one engine's events. medium: GPU or CPU."""

    def __init__(self, *, block_size: int, medium: str, rank: int) -> None:
        self._block_size, self._medium, self._rank = block_size, medium, rank
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, ts: float, events: list[CacheEvent]) -> bytes:
        return self._encoder.encode(EventBatch(ts, [self._event(one) for one in events], self._rank))

    def _event(self, event: CacheEvent) -> BlockStored | BlockRemoved | AllBlocksCleared:
        if isinstance(event, BlocksCleared):
            return AllBlocksCleared()
        if isinstance(event, BlocksRemoved):
            return BlockRemoved(event.names, self._medium)
        extra = [[event.salt_id], *[None] * (len(event.names) - 1)] if event.salt_id else None
        return BlockStored(
            block_hashes=event.names,
            parent_block_hash=event.parent,
            token_ids=_ints(event),
            block_size=self._block_size,
            lora_id=None,
            medium=self._medium,
            lora_name=None,
            extra_keys=extra,
        )


def _ints(event: Stored) -> list[int]:
    tokens = array("i", event.tokens)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()
