"""Cache groups with spans under random schedules: pages behind a span go back to the pool, and each request
still gets what it would get alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.backends.null import NullExecutor
from firelane.contract import CAUSAL, Chunk, StepLimits, Window

spans = st.lists(
    st.one_of(st.just(CAUSAL), st.builds(Window, st.integers(1, 12)), st.builds(Chunk, st.integers(1, 12))),
    min_size=1,
    max_size=3,
).map(tuple)
sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_output_rows": st.integers(5, 9),
        "max_num_batched_tokens": st.integers(5, 24),
        "max_model_len": st.integers(12, 60),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "num_blocks": st.integers(12, 40),
        "prefix_cache": st.booleans(),
        "spans": spans,
        "max_in_flight": st.sampled_from([1, 2]),
        "is_pipelined": st.booleans(),
    }
)
PREFIXES = [[1, 2, 3, 4, 5, 6, 7, 8] * 3, [1, 2, 3, 4, 9, 9, 9, 9] * 2, []]
requests = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda prefix, cut, tail: (prefix[:cut] + tail) or [0],
            st.sampled_from(PREFIXES),
            st.integers(0, 24),
            st.lists(st.integers(0, 49), max_size=9),
        ),
        "tenant": st.sampled_from(["a", "a", "b"]),
        "background": st.sampled_from([False, False, True]),
        "seed": st.integers(0, 3),
        "chunk_tokens": st.sampled_from([0, 0, 1, 3]),
        "max_tokens": st.integers(0, 30),
        "prompt_logprobs": st.sampled_from([-1, -1, -1, 1]),
    }
)
turns = st.tuples(st.lists(requests, max_size=3), st.one_of(st.none(), st.integers(0, 30)))


@settings(max_examples=150, deadline=None)
@given(sizes=sizes, tile=st.sampled_from([1, 2, 4, 8]), schedule=st.lists(turns, max_size=12))
def test_random_schedules(driver, request_of, alone, tiles, sizes, tile, schedule):
    with tiles(tile):
        d, sent, aborted = driver(**sizes), [], set()
        for batch, abort in schedule:
            new = [request_of(len(sent) + i, **fields) for i, fields in enumerate(batch)]
            sent += new
            d.submit(*new)
            if abort is not None:
                aborted.add(abort)
                d.abort(abort)
            d.step()
        d.run(max_steps=5000)
        for request in sent:
            check(d, request, alone, may_be_aborted=request.id in aborted)


def check(d, request, alone, *, may_be_aborted):
    if request.id in d.rejected:
        assert "the prompt has" in d.rejected[request.id]
        return
    longest = min(d.limits.max_model_len, d.core.kv.max_tokens + 1)
    tokens, reason = alone(request, longest, spans=d.limits.spans)
    got = d.tokens.get(request.id, [])
    if may_be_aborted and d.reasons[request.id] == "abort":
        assert got == tokens[: len(got)]
    else:
        assert (got, d.reasons[request.id]) == (tokens, reason)


@pytest.mark.parametrize("span", [Window(128), Chunk(128)])
def test_a_long_sequence_holds_the_pages_of_its_span(driver, request_of, alone, span):
    d = driver(spans=(span,), max_model_len=1200, num_blocks=400, max_num_batched_tokens=32)
    request = request_of(1, [i % 50 for i in range(600)], max_tokens=500)
    d.submit(request)
    held = []
    while 1 not in d.reasons:
        d.step()
        if len(d.tokens.get(1, [])) > 5:
            held.append(d.core.kv.num_used_pages * d.limits.block_size)
    assert d.tokens[1] == alone(request, 1200, spans=(span,))[0]
    assert max(held) <= 128 + 64 + 2 * 4


def test_a_pool_of_one_span_serves_long_sequences(driver, request_of, alone):
    """Far more tokens than the pool has room for, two at a time."""
    d = driver(spans=(Window(16),), max_model_len=500, num_blocks=70, max_num_batched_tokens=16)
    assert d.core.kv.max_tokens > 500
    requests = [request_of(i, [(i + k) % 50 for k in range(150)], max_tokens=200) for i in range(4)]
    d.submit(*requests)
    d.run()
    for request in requests:
        assert d.tokens[request.id] == alone(request, 500, spans=(Window(16),))[0]


def test_a_prefix_needs_all_tokens_in_one_group_and_its_end_in_the_other(driver, request_of, tiles):
    with tiles(4):
        d = driver(spans=(CAUSAL, Window(8)), num_blocks=60)
        prompt = [i % 50 for i in range(40)]
        d.submit(request_of(1, prompt, max_tokens=4))
        d.run()
        d.submit(request_of(2, [*prompt, *d.tokens[1], 7], max_tokens=4))
        d.run()
        assert d.cached == {1: 0, 2: 40}


def test_a_window_of_4096_at_32000_tokens_holds_its_window(driver, request_of):
    limits = StepLimits(
        max_num_seqs=2,
        max_num_batched_tokens=512,
        max_output_rows=8,
        max_model_len=32768,
        block_size=16,
        num_blocks=2048,
        spans=(Window(4096),),
    )
    d = driver(executor=NullExecutor(limits, 50))
    d.submit(request_of(1, np.arange(32000) % 50, max_tokens=100))
    held = []
    while 1 not in d.reasons:
        d.step()
        if d.tokens.get(1):
            held.append(d.core.kv.num_used_pages)
    assert max(held[2:-1]) * 16 <= 1.1 * 4096
