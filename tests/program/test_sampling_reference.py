"""The rules of the Sample op, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import MAX_BIAS, MAX_LOGPROBS, MAX_STOP_IDS, SAMPLING_DTYPE
from firelane.program.sampling_reference import (
    RowSampling,
    adjust,
    draw,
    kept,
    log_softmax,
    philox4x32,
    sample_row,
    uniform,
)

VOCAB = 50
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "logprobs": -1}


def row(
    tokens: tuple[int, ...] = (1,),
    *,
    draws: bool = True,
    bias: Any = (),
    stop: Any = (),
    allowed: Any = None,
    **params: Any,
) -> RowSampling:
    record = np.zeros(1, SAMPLING_DTYPE)
    for name, value in (NEUTRAL | params | {"num_bias": len(bias), "num_stop_ids": len(stop)}).items():
        record[name] = value
    bias_ids, bias_values = np.zeros(MAX_BIAS, np.int32), np.zeros(MAX_BIAS, np.float32)
    record["masked"] = allowed is not None
    mask = np.zeros(VOCAB // 32 + 1, np.uint32)
    for token in allowed or ():
        mask[token // 32] |= np.uint32(1 << token % 32)
    stop_ids = np.zeros(MAX_STOP_IDS, np.int32)
    stop_ids[: len(stop)] = stop
    for i, (token, value) in enumerate(bias):
        bias_ids[i], bias_values[i] = token, value
    history = np.zeros(64, np.int32)
    history[: len(tokens)] = tokens
    return RowSampling(
        position=len(tokens),
        draws=draws,
        tokens=history,
        params=record[0],
        bias_ids=bias_ids,
        bias_values=bias_values,
        stop_ids=stop_ids,
        mask=mask,
    )


def some_logits(seed: int = 0) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal(VOCAB)).astype(np.float32)


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(counter: Any, key: Any, want: str) -> None:
    """The vectors that come with Random123."""
    assert " ".join(f"{word:08x}" for word in philox4x32(counter, key)) == want


def test_uniform_is_uniform() -> None:
    draws = np.array([uniform(seed << 30, position) for seed in range(50) for position in range(100)])
    assert ((draws >= 0) & (draws < 1)).all()
    assert np.abs(np.histogram(draws, 10, (0, 1))[0] / 500 - 1).max() < 0.25
    assert (draws * 2**24 % 1 == 0).all()


def test_both_halves_of_the_seed_count() -> None:
    assert len({uniform(seed, 7) for seed in (1, 1 << 32, (1 << 32) + 1, 2**64 - 1)}) == 4


def test_greedy_takes_the_lowest_id_on_a_tie() -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[7, 9]] = 2
    assert draw(logits, row(temperature=0.0)) == 7


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    drawn = [draw(logits, row(seed=seed)) for seed in range(4000)]
    np.testing.assert_allclose(np.bincount(drawn) / 4000, [0.5, 0.3, 0.2], atol=0.03)


def test_repetition_penalty_covers_prompt_and_output() -> None:
    logits = np.array([2, -2, 2, -2, 2], np.float32)
    got = adjust(logits, row((0, 1, 2, 2), prompt_len=2, repetition_penalty=2.0))
    assert got.tolist() == [1, -4, 1, -2, 2]


def test_frequency_and_presence_cover_the_output_alone() -> None:
    logits = np.zeros(5, np.float32)
    got = adjust(logits, row((0, 1, 2, 2, 3), prompt_len=2, frequency_penalty=0.5, presence_penalty=0.25))
    assert got.tolist() == [0, 0, -1.25, -0.75, 0]


def test_bias_and_stop_tokens() -> None:
    logits = np.zeros(5, np.float32)
    got = adjust(logits, row((1, 1), bias=[(3, 1.5)], stop=[4], stop_from=3))
    assert got.tolist() == [0, 0, 0, 1.5, -np.inf]
    assert adjust(logits, row((1, 1), stop=[4], stop_from=2))[4] == 0  # position 2 may stop


def test_mask_comes_last() -> None:
    logits = some_logits()
    got = adjust(logits, row(bias=[(3, 99.0), (40, 1.5)], allowed=[4, 31, 32, 40, 49]))
    assert np.flatnonzero(got > -np.inf).tolist() == [4, 31, 32, 40, 49]
    assert got[40] == logits[40] + np.float32(1.5)
    result = sample_row(logits, row(bias=[(3, 99.0)], allowed=[7]))
    assert result.token == 7
    assert result.logprob == log_softmax(logits)[7]


def test_a_ban_that_would_leave_nothing_is_ignored() -> None:
    logits = some_logits()
    banned = {"stop": [4, 9], "stop_from": 50}
    assert np.flatnonzero(adjust(logits, row(allowed=[4, 9, 11], **banned)) > -np.inf).tolist() == [11]
    assert np.flatnonzero(adjust(logits, row(allowed=[4, 9], **banned)) > -np.inf).tolist() == [4, 9]


def test_the_lowest_allowed_token_where_no_logit_is_left() -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[3] = 1
    for temperature in (0.0, 1.0):
        assert draw(logits, row(allowed=[33, 40], temperature=temperature)) == 33


def mass_kept(probabilities: list[float], **params: Any) -> list[int]:
    scaled = np.log(np.array(probabilities, np.float32))
    mass = np.exp(scaled.astype(np.float64) - scaled.max())
    return np.flatnonzero(kept(scaled, mass, row(**params).params)).tolist()


def test_filters() -> None:
    p = [0.1, 0.4, 0.05, 0.25, 0.2]
    assert mass_kept(p) == [0, 1, 2, 3, 4]
    assert mass_kept(p, min_p=0.45) == [1, 3, 4]
    assert mass_kept(p, top_k=2) == [1, 3]
    assert mass_kept(p, top_p=0.5) == [1, 3]
    assert mass_kept(p, top_p=0.7) == [1, 3, 4]
    assert mass_kept(p, top_p=0.0) == [1]
    # top_p is of the mass that top_k left: 0.4 of 0.65 is less than 0.7, 0.4 of 0.4 is not
    assert mass_kept(p, top_k=2, top_p=0.7) == [1, 3]
    assert mass_kept(p, top_k=1, top_p=0.7) == [1]


def test_ties_at_a_cut_go_by_id() -> None:
    assert mass_kept([0.25] * 4, top_k=2) == [0, 1]
    assert mass_kept([0.25] * 4, top_p=0.5) == [0, 1]


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.floats(0.0625, 4, width=32),
    top_k=st.integers(0, 60),
    top_p=st.floats(0, 1, width=32),
    min_p=st.floats(0, 1, width=32),
)
def test_what_is_drawn_was_kept(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = some_logits(seed % 7)
    sampling = row(seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    token = draw(logits, sampling)
    scaled = logits / np.float32(temperature)
    mass = np.exp(scaled.astype(np.float64) - scaled.max())
    assert kept(scaled, mass, sampling.params)[token]
    assert token == draw(logits, sampling)


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = some_logits()
    result = sample_row(logits, row((5, 6), temperature=0.5, bias=[(3, 50.0)], top_k=1))
    want = np.log(np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum())
    assert result.token == 3
    assert result.logprob == pytest.approx(want[3])
    assert result.top_ids.tolist() == np.argsort(-logits)[:MAX_LOGPROBS].tolist()
    np.testing.assert_allclose(result.top_logprobs, want[result.top_ids])
    assert log_softmax(logits + 1000) == pytest.approx(want, abs=1e-3)


def test_score_reports_the_token_that_stands_there() -> None:
    logits, scored = some_logits(), row((5, 6), draws=False)
    scored.tokens[2] = 11
    result = sample_row(logits, scored)
    assert (result.token, result.logprob) == (11, pytest.approx(float(log_softmax(logits)[11])))
