"""Pages that gateways are told of: what later prompts would find, by names that gateways can compute."""

from __future__ import annotations

import numpy as np
import pytest
from test_events import tokens

from firelane.contract import CAUSAL, Window
from firelane.kv import KvCache
from firelane.wire.cache_events import PageChanges, numbers_bytes, numbers_of
from firelane.wire.page_names import PAGE_TOKENS, page_names

SIZE = 16
BLOCKS = PAGE_TOKENS // SIZE


def cache(pages: int, *, size: int = SIZE, follows: bool = True, spans=(CAUSAL,)) -> KvCache:
    kv = KvCache(pages * BLOCKS, size, spans)
    if follows:
        kv.pages.follow()
        kv.pages.take()
    return kv


def change(kv: KvCache) -> tuple[list[int], list[int]]:
    frame = kv.pages.take()
    return ([], []) if frame is None else (numbers_of(frame.stored), numbers_of(frame.removed))


def names(prompt: np.ndarray, salt: bytes = b"") -> list[int]:
    return page_names(salt, prompt.astype("<i4").tobytes())


@pytest.mark.parametrize("salt", [b"", b"a tenant's"])
def test_full_pages_are_told_once_by_the_names_that_a_gateway_computes(salt):
    kv, prompt = cache(8), tokens(3 * PAGE_TOKENS + 40)
    for _ in range(2):
        compute_all(kv, prompt, salt)
    assert change(kv) == (names(prompt, salt), [])
    assert kv.pages.take() is None


def compute_all(kv: KvCache, prompt: np.ndarray, salt: bytes = b"") -> None:
    """Compute a prompt like test_events.compute, in blocks of this cache."""
    chain = kv.chain(salt)
    hit = kv.search.lookup(chain, prompt, len(prompt))
    tables = kv.share(len(prompt), hit)
    kv.reserve(tables, hit)
    kv.grow(tables, len(prompt))
    kv.publish(tables, chain, prompt, len(prompt) // kv.block_size)
    kv.release(tables)


def test_pages_that_are_given_to_others_are_told_to_be_gone():
    kv, first, second = cache(3), tokens(2 * PAGE_TOKENS), tokens(2 * PAGE_TOKENS, 9000)
    compute_all(kv, first)
    assert change(kv) == (names(first), [])
    compute_all(kv, second)
    assert change(kv) == (names(second), names(first)[1:])
    compute_all(kv, first)
    assert change(kv)[0] == names(first)[1:]


def test_a_page_that_comes_and_goes_between_two_frames_is_not_told():
    kv, first, second = cache(2), tokens(2 * PAGE_TOKENS), tokens(2 * PAGE_TOKENS, 9000)
    compute_all(kv, first)
    compute_all(kv, second)
    assert change(kv) == (names(second), [])


def test_whoever_follows_late_or_again_is_told_all():
    kv, prompt = cache(4, follows=False), tokens(2 * PAGE_TOKENS)
    compute_all(kv, prompt)
    assert kv.pages.take() is None
    for _ in range(2):
        kv.pages.follow()
        assert kv.pages.take() == PageChanges(numbers_bytes(names(prompt)), b"", is_whole=True)


def test_a_cache_that_is_emptied_has_no_pages():
    kv, prompt = cache(4), tokens(2 * PAGE_TOKENS)
    compute_all(kv, prompt)
    change(kv)
    kv.forget()
    assert sorted(change(kv)[1]) == sorted(names(prompt))


def test_of_blocks_that_end_elsewhere_only_whole_pages_are_told():
    kv, prompt = cache(4, size=96), tokens(3 * PAGE_TOKENS)
    compute_all(kv, prompt)
    assert change(kv) == (names(prompt)[2:], [])


def test_without_a_prefix_cache_nothing_is_told():
    kv = KvCache(64, SIZE, prefix_caching=False)
    kv.pages.follow()
    assert kv.pages.take() is None


def test_windows_tell_the_pages_that_they_still_have():
    kv, prompt = cache(8, spans=(Window(64),)), tokens(2 * PAGE_TOKENS)
    compute_all(kv, prompt)
    assert set(change(kv)[0]) <= set(names(prompt))


def test_an_odd_number_of_bytes_is_no_error():
    assert numbers_of(numbers_bytes([1, 2**64 - 1]) + b"abc") == [1, 2**64 - 1]
