"""Embeddings through the engine: pooled from the hidden states of the prompt, and no tokens."""

from __future__ import annotations

import numpy as np
import pytest

from firelane.engine.sequences.sequence import EmbeddingPool, Status


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64])
def test_any_length_up_to_the_whole_context(driver, request_of, embedding_of, pooling, length):
    d = driver()
    request = request_of(1, [i % 50 for i in range(length)], pooling=pooling)
    d.submit(request)
    d.run()
    assert d.embeddings == {1: embedding_of(request)}
    assert d.reasons == {1: "stop"}
    assert not d.tokens
    assert not d.logprobs


def test_too_long(driver, request_of):
    d = driver()
    d.submit(request_of(1, [1] * 65, pooling="last"))
    d.run()
    assert "the prompt has 65 tokens" in d.rejected[1]


def test_an_embedding_and_its_end_come_in_one_frame(driver, request_of):
    d = driver()
    d.submit(request_of(1, range(5), pooling="last"))
    d.run()
    [frame] = [f for f in d.frames if f.embeddings]
    assert [e.id for e in frame.embeddings] == [1]
    assert [(f.id, f.reason) for f in frame.finished] == [(1, "stop")]
    assert d.executor.steps == 1


def test_what_the_sampling_says_counts_for_nothing(driver, request_of, embedding_of):
    d = driver()
    request = request_of(1, range(5), pooling="mean", max_tokens=0, temperature=-1.0, prompt_logprobs=99)
    d.submit(request)
    d.run()
    assert d.embeddings == {1: embedding_of(request)}


def test_last_reuses_a_cached_prefix_and_mean_computes_all(driver, request_of, embedding_of):
    d = driver()
    requests = [request_of(i, range(12), pooling=p) for i, p in enumerate(["mean", "last", "mean"])]
    for request in requests:
        d.submit(request)
        d.run()
    assert d.cached == {0: 0, 1: 8, 2: 0}
    assert d.embeddings == {r.id: embedding_of(r) for r in requests}


def test_the_prompt_of_an_embedding_is_cached_for_generation(driver, request_of, alone):
    d = driver()
    d.submit(request_of(1, range(12), pooling="mean"))
    d.run()
    request = request_of(2, range(12))
    d.submit(request)
    d.run()
    assert d.cached[2] == 8
    assert d.tokens[2] == alone(request, 64)[0]


def test_among_generating_sequences(driver, request_of, alone, embedding_of):
    d = driver(max_output_rows=6)
    requests = [
        request_of(i, range(i, i + 9), pooling=[None, "mean", "last"][i % 3], prompt_logprobs=1 - i % 2)
        for i in range(12)
    ]
    d.submit(*requests)
    d.run()
    for request in requests:
        if request.pooling:
            assert d.embeddings[request.id] == embedding_of(request)
        else:
            assert d.tokens[request.id] == alone(request, 64)[0]


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_abort(driver, request_of, embedding_of, turns):
    """In the queue, with the first chunk in flight, and later."""
    d = driver(max_num_batched_tokens=4)
    other = request_of(2, range(9), pooling="mean")
    d.submit(request_of(1, range(11), pooling="mean"), other)
    for _ in range(turns):
        d.step()
    d.abort(1)
    d.run()
    assert d.reasons == {1: "abort", 2: "stop"}
    assert d.embeddings == {2: embedding_of(other)}


def test_preempted_while_it_prefills(driver, request_of, alone, embedding_of):
    """Hidden states that were summed before the preemption are not summed again."""
    d = driver(num_blocks=10, max_num_batched_tokens=5, max_num_seqs=3, max_model_len=32)
    requests = [request_of(i, range(4), max_tokens=28) for i in (0, 1)]
    requests.append(request_of(2, range(12), pooling="mean"))
    d.submit(*requests[:2])
    for _ in range(5):
        d.step()
    d.submit(requests[2])
    preempted = 0
    while not d.core.is_idle or not d.reasons:
        d.step()
        sequence = d.core.table.get(2)
        preempted += (
            sequence is not None and sequence.status is Status.WAITING and sequence.prompt_logprobs_done > 0
        )
    assert preempted
    assert d.embeddings == {2: embedding_of(requests[2])}
    for request in requests[:2]:
        assert d.tokens[request.id] == alone(request, 32)[0]


def test_the_sum_is_made_position_by_position():
    states = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    pool = EmbeddingPool()
    total = np.zeros(7)
    for state in states:
        pool.add(state)
        total += state
    assert pool.values() == (total / 50).astype(np.float32).tobytes()


def test_one_state_is_its_own_mean():
    state = np.array([1e-38, 3.4e38, -0.5], np.float32)
    pool = EmbeddingPool()
    pool.add(state)
    assert pool.values() == state.tobytes()
