"""The bytes of a batch, against the form that vLLM publishes and routers decode."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import msgspec

from firelane.gateway.kv_events.encoding import BatchEncoder
from firelane.wire.cache_events import BlocksCleared, BlocksRemoved, BlocksStored

HIGH = (1 << 64) - 1


def batch(*events: Any, rank: int = 0, medium: str = "CPU") -> Any:
    """Encode a batch, and decode it as a subscriber that knows nothing of the fields."""
    payload = BatchEncoder(block_size=2, medium=medium, rank=rank).encode(1700000000.5, list(events))
    return msgspec.msgpack.decode(payload)


def stored(names: list[int], parent: int | None, tokens: list[int], salt_id: str = "") -> BlocksStored:
    return BlocksStored(names, parent, struct.pack(f"<{len(tokens)}i", *tokens), salt_id)


def test_a_batch_is_an_array_and_an_event_a_map_tagged_type():
    ts, events, rank = batch(stored([7, HIGH], 3, [1, 2, 3, 128000]), rank=2)
    assert (ts, rank) == (1700000000.5, 2)
    assert events == [
        {
            "type": "BlockStored",
            "block_hashes": [7, HIGH],
            "parent_block_hash": 3,
            "token_ids": [1, 2, 3, 128000],
            "block_size": 2,
            "lora_id": None,
            "medium": "CPU",
            "lora_name": None,
        }
    ]


def test_events_keep_their_order():
    _, events, _ = batch(BlocksCleared(), BlocksRemoved([5, 6]), stored([8], None, [1, 2]), medium="GPU")
    assert events[:2] == [
        {"type": "AllBlocksCleared"},
        {"type": "BlockRemoved", "block_hashes": [5, 6], "medium": "GPU"},
    ]
    assert (events[2]["parent_block_hash"], events[2]["medium"]) == (None, "GPU")


def test_a_salt_is_an_extra_key_of_the_first_block():
    _, (event,), _ = batch(stored([1, 2, 3], None, [0] * 6, "ab12"))
    assert event["extra_keys"] == [["ab12"], None, None]


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """A batch as a client of vLLM declares it."""

    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


class Stored(msgspec.Struct, omit_defaults=True, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None


class Removed(msgspec.Struct, omit_defaults=True, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None


class Cleared(msgspec.Struct, omit_defaults=True, tag="AllBlocksCleared"):
    pass


def test_a_typed_client_reads_it():
    encoder = BatchEncoder(block_size=2, medium="CPU", rank=1)
    payload = encoder.encode(1.0, [BlocksCleared(), stored([4], None, [9, 8], "cd"), BlocksRemoved([4])])
    read = msgspec.msgpack.decode(payload, type=EventBatch)
    first, second, third = read.events
    assert isinstance(first, Cleared)
    assert isinstance(second, Stored)
    assert (second.token_ids, second.extra_keys) == ([9, 8], [("cd",)])
    assert third == Removed([4], "CPU")
    assert read.data_parallel_rank == 1


def test_tokens_of_a_long_prompt():
    tokens = list(range(100_000))
    _, (event,), _ = batch(BlocksStored([1], None, array("i", tokens).tobytes()))
    assert event["token_ids"] == tokens
