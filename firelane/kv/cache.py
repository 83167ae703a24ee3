"""The KV cache as the scheduler uses it: block tables of sequences over one pool, with prefix reuse."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from firelane.kv.pool import BlockPool
from firelane.kv.prefix import PrefixChain


class BlockTable:
    """The blocks of one sequence, in order. Made by KvCache.reserve, dead after KvCache.release."""

    __slots__ = ("_ids", "cached_tokens", "published_blocks")

    def __init__(self, ids: list[int], cached_tokens: int, published_blocks: int) -> None:
        self._ids = ids
        self.cached_tokens = cached_tokens
        self.published_blocks = published_blocks

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> list[int]:
        """The block ids, to be copied into the executor's block table at once."""
        return self._ids


class KvCache:
    """Reserves, grows, publishes and releases block tables.

    Only full blocks whose step has ended are published, and a sequence writes to none but its own last
    blocks: a
    published block never changes until it is given out again.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._pool = BlockPool(num_blocks)
        self._prefix_caching = prefix_caching

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self._pool.num_free

    def chain(self, salt: bytes) -> PrefixChain:
        return PrefixChain(salt, self.block_size)

    def reserve(
        self, chain: PrefixChain, tokens: NDArray[np.int32], *, reusable_tokens: int, headroom_blocks: int = 0
    ) -> BlockTable | None:
        """Blocks for all `tokens`, the longest cached prefix among them; None where there is no room.

        At most `reusable_tokens` tokens come from the cache (never all: the last token must be computed), and
        `headroom_blocks` blocks stay free.
        """
        size = self.block_size
        total = -(-len(tokens) // size)
        limit = min(reusable_tokens, len(tokens) - 1) // size if self._prefix_caching else 0
        shared = self._pool.find(chain.names(tokens, limit), limit) if limit > 0 else []
        fresh = total - len(shared)
        if self._pool.num_free - self._pool.num_idle(shared) < fresh + headroom_blocks:
            return None
        self._pool.share(shared)
        ids = shared + [self._pool.take() for _ in range(fresh)]
        return BlockTable(ids, len(shared) * size, len(shared))

    def grow(self, table: BlockTable) -> int | None:
        """Append one block and return its id; None where there is no room."""
        if self._pool.num_free == 0:
            return None
        block = self._pool.take()
        table.ids().append(block)
        return block

    def publish(
        self, table: BlockTable, chain: PrefixChain, tokens: NDArray[np.int32], num_blocks: int
    ) -> None:
        """Let later prompts find the first `num_blocks` blocks: all of their tokens have been computed."""
        if self._prefix_caching:
            names, ids = chain.names(tokens, num_blocks), table.ids()
            for index in range(table.published_blocks, num_blocks):
                self._pool.publish(ids[index], names[index])
        table.published_blocks = num_blocks

    def release(self, table: BlockTable) -> None:
        self._pool.release(table.ids())
        table.ids().clear()

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Raise AssertionError unless the pool is sound and `tables` are exactly its users."""
        self._pool.check_integrity()
        expected = [0] * self.num_blocks
        for table in tables:
            assert len(set(table.ids())) == len(table), "a sequence holds a block twice"
            for block in table.ids():
                expected[block] += 1
        actual = [self._pool.references(block) for block in range(self.num_blocks)]
        assert actual == expected, "reference counts differ from the block tables: leaked or freed too early"
