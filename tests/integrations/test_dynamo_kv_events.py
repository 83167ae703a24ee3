"""Changes of the prefix cache on their way to Dynamo's router."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from firelane.wire.cache_events import BlocksCleared, BlocksRemoved, BlocksStored, CacheEvents
from firelane_dynamo.kv_events import CacheRecord

HIGH = 2**64 - 5


class Told:
    def __init__(self) -> None:
        self.batches: list[list[dict[str, Any]]] = []

    def publish_batch(self, events: list[dict[str, Any]]) -> None:
        self.batches.append(events)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def record(told: Told) -> CacheRecord:
    made = CacheRecord()
    made.attach(told)
    return made


def stored(*names: int, parent: int | None = None, salt_id: str = "") -> BlocksStored:
    tokens = array("i", range(4 * len(names))).tobytes()
    return BlocksStored(list(names), parent, tokens, salt_id)


def test_blocks_come_and_go(record: CacheRecord, told: Told) -> None:
    record.on_events(CacheEvents([stored(7, HIGH), stored(9, parent=HIGH)]))
    record.on_events(CacheEvents([BlocksRemoved([9])]))
    assert told.batches == [
        [
            {
                "type": "stored",
                "token_ids": list(range(8)),
                "num_block_tokens": [4, 4],
                "block_hashes": [7, -5],
                "parent_hash": None,
            },
            {
                "type": "stored",
                "token_ids": list(range(4)),
                "num_block_tokens": [4],
                "block_hashes": [9],
                "parent_hash": -5,
            },
        ],
        [{"type": "removed", "block_hashes": [9]}],
    ]


@pytest.mark.parametrize("cleared", [True, False])
def test_an_engine_that_goes_takes_its_blocks_along(record, told, cleared) -> None:
    record.on_events(CacheEvents([stored(7, 8)]))
    if cleared:
        record.on_events(CacheEvents([BlocksCleared()]))
    record.clear()
    record.clear()
    assert told.batches[1:] == [[{"type": "removed", "block_hashes": [7, 8]}]]


def test_prompts_with_a_salt_are_not_told(record: CacheRecord, told: Told) -> None:
    record.on_events(CacheEvents([stored(7, salt_id="a"), stored(8, parent=7), BlocksRemoved([7, 8])]))
    assert told.batches == []


def test_nobody_listens() -> None:
    record = CacheRecord()
    record.on_events(CacheEvents([stored(7)]))
    record.clear()
