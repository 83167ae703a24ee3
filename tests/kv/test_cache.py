from __future__ import annotations

import numpy as np
import pytest

from firelane.kv import KvCache


def tokens(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)


def fill(kv: KvCache, salt: bytes, prompt: np.ndarray):
    """A sequence that has computed all its full blocks."""
    chain = kv.chain(salt)
    table = kv.reserve(chain, prompt, reusable_tokens=len(prompt))
    assert table is not None
    kv.publish(table, chain, prompt, len(prompt) // kv.block_size)
    return table


def test_prefix_is_found_up_to_the_first_difference():
    kv = KvCache(16, 4)
    first = fill(kv, b"", tokens(12))
    other = np.concatenate([tokens(6), tokens(6, 100)])
    second = kv.reserve(kv.chain(b""), other, reusable_tokens=12)
    assert second is not None
    assert second.cached_tokens == 4
    assert second.ids()[0] == first.ids()[0]
    assert not set(second.ids()[1:]) & set(first.ids())
    kv.check_integrity([first, second])


@pytest.mark.parametrize("length", [8, 9, 11])
def test_the_last_token_is_always_computed(length):
    kv = KvCache(16, 4)
    fill(kv, b"", tokens(12))
    again = kv.reserve(kv.chain(b""), tokens(length), reusable_tokens=length)
    assert again is not None
    assert again.cached_tokens == (length - 1) // 4 * 4 < length


def test_salts_never_share():
    kv = KvCache(16, 4)
    fill(kv, b"acme", tokens(12))
    for salt in (b"", b"acm", b"acme\0", b"other"):
        table = kv.reserve(kv.chain(salt), tokens(12), reusable_tokens=12)
        assert table is not None
        assert table.cached_tokens == 0
        kv.release(table)


def test_released_prefix_stays_until_the_room_is_needed():
    kv = KvCache(4, 4)
    kv.release(fill(kv, b"", tokens(12)))
    assert kv.num_free_blocks == 4
    again = kv.reserve(kv.chain(b""), tokens(12), reusable_tokens=12)
    assert again is not None
    assert again.cached_tokens == 8
    kv.release(again)
    big = kv.reserve(kv.chain(b"x"), tokens(16), reusable_tokens=16)
    assert big is not None
    kv.release(big)
    assert fill(kv, b"", tokens(12)).cached_tokens == 0


def test_no_room_changes_nothing():
    kv = KvCache(4, 4)
    held = fill(kv, b"", tokens(8))
    assert kv.reserve(kv.chain(b""), tokens(20), reusable_tokens=20) is None
    assert kv.reserve(kv.chain(b"y"), tokens(8), reusable_tokens=8, headroom_blocks=1) is None
    kv.check_integrity([held])


def test_cached_blocks_that_are_shared_do_not_count_as_room():
    kv = KvCache(3, 4)
    kv.release(fill(kv, b"", tokens(8)))
    # 3 blocks are free, 1 of them is the shared prefix: 2 fresh ones are left, 3 would be needed.
    assert kv.reserve(kv.chain(b""), np.concatenate([tokens(4), tokens(12, 50)]), reusable_tokens=16) is None


def test_grow_until_full():
    kv = KvCache(2, 4)
    table = fill(kv, b"", tokens(4))
    assert kv.grow(table) is not None
    assert kv.grow(table) is None
    assert len(table) == 2


def test_reusable_tokens_limits_the_reuse():
    kv = KvCache(8, 4)
    fill(kv, b"", tokens(12))
    table = kv.reserve(kv.chain(b""), tokens(12), reusable_tokens=5)
    assert table is not None
    assert table.cached_tokens == 4


def test_without_prefix_caching_nothing_is_shared():
    kv = KvCache(8, 4, prefix_caching=False)
    fill(kv, b"", tokens(8))
    assert fill(kv, b"", tokens(9)).cached_tokens == 0


def test_integrity_finds_a_leak():
    kv = KvCache(4, 4)
    fill(kv, b"", tokens(4))
    with pytest.raises(AssertionError, match="leaked"):
        kv.check_integrity([])
