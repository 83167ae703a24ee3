"""Request mixes: seeded, of the stated means, within bounds."""

from __future__ import annotations

import statistics

import pytest

from firelane.bench.workload import (
    Lengths,
    exponential,
    sharegpt_like,
    text_requests,
    token_requests,
)


def test_same_seed_same_mix() -> None:
    assert sharegpt_like(50, seed=1) == sharegpt_like(50, seed=1)
    assert sharegpt_like(50, seed=1) != sharegpt_like(50, seed=2)


def test_sharegpt_like_is_long_tailed_and_bounded() -> None:
    prompts = [n.prompt_tokens for n in sharegpt_like(5000, seed=0)]
    assert 180 < statistics.mean(prompts) < 230
    assert statistics.median(prompts) < 0.7 * statistics.mean(prompts)
    assert 4 <= min(prompts) <= max(prompts) <= 1024


def test_exponential_has_the_asked_means() -> None:
    lengths = exponential(5000, seed=0, prompt_mean=220, output_mean=200)
    assert statistics.mean(n.prompt_tokens for n in lengths) == pytest.approx(220, rel=0.07)
    assert statistics.mean(n.output_tokens for n in lengths) == pytest.approx(200, rel=0.07)
    assert min(n.output_tokens for n in lengths) >= 1


@pytest.mark.parametrize(("vocab_size", "lowest"), [(1000, 100), (50, 0)])
def test_token_requests_have_exact_lengths_and_valid_ids(vocab_size: int, lowest: int) -> None:
    lengths = [Lengths(prompt_tokens=n, output_tokens=2 * n) for n in (1, 7, 300)]
    requests = token_requests(lengths, seed=0, vocab_size=vocab_size)
    assert [len(r.prompt) for r in requests] == [1, 7, 300]
    assert [r.output_tokens for r in requests] == [2, 14, 600]
    assert all(lowest <= i < vocab_size for r in requests for i in r.prompt if isinstance(i, int))


def test_text_requests_are_the_decoded_ids() -> None:
    lengths = [Lengths(prompt_tokens=3, output_tokens=5)]
    (request,) = text_requests(lengths, seed=0, vocab_size=500, decode=lambda ids: " ".join(map(str, ids)))
    (ids,) = token_requests(lengths, seed=0, vocab_size=500)
    assert request.prompt == " ".join(map(str, ids.prompt))
    assert request.output_tokens == 5
