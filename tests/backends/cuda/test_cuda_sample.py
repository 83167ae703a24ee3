"""Sampling in Triton's interpreter: each rule of the op by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from firelane.backends.cuda.step.tables import LOGIT_ROWS
from firelane.contract import EMBED, MAX_LOGPROBS, SAMPLE, SCORE
from firelane.program import sampling_reference as reference
from tests.backends.cuda.cuda_sampling_harness import Sampler
from tests.backends.sampling_cases import logits_of
from tests.backends.sampling_harness import VOCABS, Request, is_right_draw, mask_of

LOG_PROBS = np.log(np.array([0.4, 0.3, 0.1, 0.1, 0.05, 0.03, 0.02], np.float32))


@pytest.fixture(scope="module")
def samplers() -> dict[int, Sampler]:
    return {vocab: Sampler(vocab, max_rows=12, max_len=320) for vocab in VOCABS}


def token(sampler: Sampler, logits: Any, **fields: Any) -> int:
    return sampler.row(np.array(logits, np.float32), Request(**fields)).token


def seeds(count: int) -> list[int]:
    """Seeds whose first numbers are spread evenly over [0, 1), the ends among them."""
    by_number = sorted((reference.uniform(seed, 1), seed) for seed in range(400))
    return [by_number[i * 399 // (count - 1)][1] for i in range(count)]


def draws(sampler: Sampler, logits: Any, *, count: int = 6, **fields: Any) -> set[int]:
    """Tokens from all over the distribution, its first and its last one among them."""
    row = np.array(logits, np.float32)
    return {r.token for r in sampler.rows([(row, Request(seed=s, **fields)) for s in seeds(count)])}


# ---- greedy


@pytest.mark.parametrize("vocab", VOCABS)
def test_greedy_takes_the_largest_and_the_lowest_id_on_a_tie(
    samplers: dict[int, Sampler], vocab: int
) -> None:
    cases, expected = [], []
    for tied in ([vocab // 3], [vocab - 1], [vocab // 2, vocab - 1], [0, 3, vocab - 2]):
        logits = logits_of(vocab, seed=1)
        logits[tied] = logits.max() + 1
        cases.append((logits, Request()))
        expected.append(min(tied))
    assert [r.token for r in samplers[vocab].rows(cases)] == expected


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, 0.7])
@pytest.mark.parametrize("vocab", [7, 1000])
def test_nan_and_infinite_logits(samplers: dict[int, Sampler], vocab: int, temperature: float) -> None:
    nothing = np.full(vocab, np.nan, np.float32)
    one, infinite = nothing.copy(), logits_of(vocab, seed=2)
    one[5], infinite[[vocab - 1, vocab // 2]] = -3, np.inf
    ask = Request(temperature=temperature, logprobs=5, top_k=3, top_p=0.9)
    lowest = np.full(vocab, -np.inf, np.float32)
    rows = samplers[vocab].rows([(x, ask) for x in (nothing, lowest, one, infinite)])
    assert [r.token for r in rows] == [0, 0, 5, vocab // 2]
    assert [math.isnan(r.logprob) for r in rows] == [True, True, False, True]
    assert rows[0].top_ids[:5] == [-1] * 5
    assert rows[1].top_ids[:5] == [0, 1, 2, 3, 4]
    assert rows[2].top_ids[:5] == [5, -1, -1, -1, -1]
    assert rows[2].logprob == 0
    assert rows[3].top_ids[:2] == [vocab // 2, vocab - 1]


# ---- the draw


@pytest.mark.parametrize("seed", [0, 17, 2**32 - 1, 2**63 + 5])
def test_the_random_number_is_the_references(samplers: dict[int, Sampler], seed: int) -> None:
    flat = np.zeros(4096, np.float32)
    positions = (0, 1, 40)
    asked = [(flat, Request(temperature=1.0, seed=seed, position=p)) for p in positions]
    expected = [int(reference.uniform(seed, p + 1) * 4096) for p in positions]
    assert [r.token for r in samplers[4096].rows(asked)] == expected


def test_extreme_temperatures(samplers: dict[int, Sampler]) -> None:
    logits = [1, 2, -50, 4, 0, -3, 3.9]
    for temperature, expected in ((1e-38, {3}), (1e-45, {3}), (1e-10, {3})):
        assert draws(samplers[7], logits, temperature=temperature) == expected
    for temperature in (3e38, np.inf):
        assert draws(samplers[7], logits, count=12, temperature=temperature) == set(range(7))


def test_a_block_that_does_not_count_is_never_drawn(samplers: dict[int, Sampler]) -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[300, 999]] = [2.0, 2.0]
    assert draws(samplers[1000], logits, temperature=1.0) == {300, 999}
    logits[0] = -60.0
    assert draws(samplers[1000], logits, temperature=0.5) == {300, 999}


# ---- filters


def test_top_k_keeps_exactly_k_with_lower_ids_first(samplers: dict[int, Sampler]) -> None:
    flat = np.zeros(1000, np.float32)
    assert draws(samplers[1000], flat, temperature=1.0, top_k=3) == {0, 1, 2}
    flat[[900, 40]] = 0.5
    assert draws(samplers[1000], flat, count=8, temperature=1.0, top_k=4) == {0, 1, 40, 900}
    assert draws(samplers[1000], flat, count=2, temperature=1.0, top_k=1) == {40}


def test_top_k_beyond_the_groups(samplers: dict[int, Sampler]) -> None:
    """More tokens than there are groups: the peaks bound nothing."""
    logits = logits_of(1000, seed=8)
    request = Request(temperature=2.0, top_k=700, seed=seeds(3)[2])
    assert is_right_draw(samplers[1000].row(logits, request).token, logits, request)


def test_top_k_treats_signed_zeros_as_equal(samplers: dict[int, Sampler]) -> None:
    logits = np.zeros(77, np.float32)
    logits[0] = -0.0
    assert draws(samplers[77], logits, temperature=1.0, top_k=2) == {0, 1}


def test_top_k_ranks_by_logit_where_weights_round_to_one(samplers: dict[int, Sampler]) -> None:
    logits = np.ones(77, np.float32)
    logits[70] = np.nextafter(np.float32(1), np.float32(2))
    assert draws(samplers[77], logits, count=2, temperature=1e6, top_k=1) == {70}


def test_top_p_keeps_the_fewest_that_reach_it(samplers: dict[int, Sampler]) -> None:
    logits = np.full(1000, -100, np.float32)
    logits[[10, 500, 999]] = np.log([0.5, 0.3, 0.2])
    kept = {0.0: {10}, 0.45: {10}, 0.7: {10, 500}, 0.85: {10, 500, 999}}
    for top_p, expected in kept.items():
        assert draws(samplers[1000], logits, temperature=1.0, top_p=top_p) == expected


def test_top_p_on_a_flat_row_takes_lower_ids(samplers: dict[int, Sampler]) -> None:
    flat = np.zeros(1000, np.float32)
    assert draws(samplers[1000], flat, count=12, temperature=1.0, top_p=0.005) == set(range(5))


def test_top_p_and_min_p_are_of_what_is_left(samplers: dict[int, Sampler]) -> None:
    for fields, expected in (
        ({"top_k": 2, "top_p": 0.5}, {0}),
        ({"top_k": 2, "top_p": 0.6}, {0, 1}),
        ({"min_p": 0.5}, {0, 1}),
        ({"min_p": 0.2}, {0, 1, 2, 3}),
        ({"min_p": 1.0}, {0}),
        ({"min_p": 0.2, "top_p": 0.5}, {0, 1}),
    ):
        assert draws(samplers[7], LOG_PROBS, count=8, temperature=1.0, **fields) == expected


# ---- adjustments


def test_repetition_penalty_counts_prompt_and_output_once(samplers: dict[int, Sampler]) -> None:
    logits = [2, 1.5, -1, -1.5, -9, -9, -9]
    history = {"tokens": (0, 0, 2), "position": 2, "prompt_len": 2}
    assert token(samplers[7], logits, repetition_penalty=1.3, **history) == 0
    assert token(samplers[7], logits, repetition_penalty=1.4, **history) == 1
    assert token(samplers[7], [-9, -9, -1, -1.5, -9, -9, -9], repetition_penalty=1.6, **history) == 3


def test_frequency_and_presence_penalties_count_output_alone(samplers: dict[int, Sampler]) -> None:
    logits = [2, 1.5, 1, 0, 0, 0, 0]
    prompt = {"tokens": (0, 0, 1), "position": 2, "prompt_len": 3}
    assert token(samplers[7], logits, presence_penalty=2, frequency_penalty=2, **prompt) == 0
    output = {"tokens": (0, 0, 0, 1), "position": 3, "prompt_len": 1}
    assert token(samplers[7], logits, frequency_penalty=0.3, **output) == 0
    assert token(samplers[7], logits, frequency_penalty=0.6, **output) == 2
    assert token(samplers[7], logits, presence_penalty=0.6, **output) == 0
    assert token(samplers[7], logits, presence_penalty=1.1, **output) == 2


def test_a_long_history_is_counted_to_its_end(samplers: dict[int, Sampler]) -> None:
    """Several chunks of tokens, the last of them ragged."""
    history = [i % 76 for i in range(299)] + [76]
    logits = np.zeros(77, np.float32)
    logits[76] = 0.5
    ask = {"tokens": tuple(history), "prompt_len": 10, "presence_penalty": 1.0, "frequency_penalty": 0.25}
    assert token(samplers[77], logits, position=298, **ask) == 76
    request = Request(position=299, **ask)
    assert samplers[77].row(logits, request).token == reference.draw(logits, request.reference) == 76
    assert token(samplers[77], logits, position=299, **(ask | {"presence_penalty": 9.0})) == 76


def test_history_out_of_range_is_skipped(samplers: dict[int, Sampler]) -> None:
    fields = {"repetition_penalty": 2.0, "presence_penalty": 0.1, "frequency_penalty": 0.1}
    assert token(samplers[7], [2, 1.5, 1, 0, 0, 0, 0], tokens=(-1, 7, 0, 2**30), position=3, **fields) == 1


def test_bias_adds_up_and_skips_ids_out_of_range(samplers: dict[int, Sampler]) -> None:
    ids, values = (3, 3, 5, 7, -1), (1.0, 1.0, 1.5, 100.0, 100.0)
    assert token(samplers[7], np.zeros(7), bias_ids=ids, bias_values=values) == 3
    many = tuple(range(40, 340))
    values = tuple(float(i in (77, 150)) + 0.5 * (i == 331) for i in many)
    assert token(samplers[1000], np.zeros(1000), bias_ids=many, bias_values=values) == 77
    assert token(samplers[1000], np.zeros(1000), bias_ids=many[38:], bias_values=values[38:]) == 150


def test_stop_ids_are_banned_below_stop_from(samplers: dict[int, Sampler]) -> None:
    logits = [0, 5, 1, 4, 0, 0, 0]
    fields = {"stop_ids": (1, 3, 99, 1), "stop_from": 10, "tokens": (0,) * 12}
    assert token(samplers[7], logits, position=8, **fields) == 2
    assert token(samplers[7], logits, position=9, **fields) == 1
    assert draws(samplers[7], logits, temperature=9.0, position=8, **fields).isdisjoint({1, 3})


# ---- mask


@pytest.mark.parametrize("vocab", VOCABS)
def test_a_masked_row_draws_only_what_is_allowed(samplers: dict[int, Sampler], vocab: int) -> None:
    logits, cases, choices = logits_of(vocab, seed=4, scale=0.5), [], []
    for allowed in ({vocab - 1}, {0, vocab - 1}, set(range(1, vocab, 3))):
        for fields in ({}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}):
            cases.append((logits, Request(seed=7, mask=mask_of(allowed, vocab, beyond=-1), **fields)))
            choices.append(allowed if fields else {max(sorted(allowed), key=lambda t: logits[t])})
    for row, allowed, case in zip(samplers[vocab].rows(cases), choices, cases, strict=True):
        assert row.token in allowed
        assert is_right_draw(row.token, *case)


def test_a_full_mask_changes_no_bit(samplers: dict[int, Sampler]) -> None:
    for vocab in (77, 1000):
        logits, full = logits_of(vocab, seed=6), mask_of(range(vocab), vocab)
        asked = [{"logprobs": 2}, {"temperature": 0.9}, {"temperature": 0.9, "top_p": 0.8, "seed": 5}]
        free = samplers[vocab].rows([(logits, Request(**fields)) for fields in asked])
        masked = samplers[vocab].rows([(logits, Request(mask=full, **fields)) for fields in asked])
        assert [r.bits for r in masked] == [r.bits for r in free]


def test_bias_cannot_bring_back_what_the_mask_forbids(samplers: dict[int, Sampler]) -> None:
    logits, mask = logits_of(77, seed=7), mask_of([5, 70], 77)
    ask = {"bias_ids": (6, 70), "bias_values": (100.0, 50.0), "mask": mask, "logprobs": 1}
    row = samplers[77].row(logits, Request(**ask))
    assert row.token == 70
    assert row.logprob == pytest.approx(reference.log_softmax(logits)[70], abs=2e-6)
    assert row.top_ids[0] == logits.argmax()


def test_a_ban_that_would_leave_nothing_is_ignored(samplers: dict[int, Sampler]) -> None:
    logits = np.array([0, 5, 1, 4, 0, 0, 0], np.float32)
    fields = {"stop_ids": (1, 3, 99, 1), "stop_from": 10, "tokens": (0,) * 12, "position": 8}
    masks = [mask_of([1, 3], 7, beyond=-1), mask_of([3], 7, beyond=-1), mask_of([1, 3, 6], 7)]
    rows = samplers[7].rows([(logits, Request(mask=mask, **fields)) for mask in masks])
    assert [r.token for r in rows] == [1, 3, 6]
    far = mask_of([64, 66], 77)
    assert token(samplers[77], np.arange(77), mask=far, **(fields | {"stop_ids": (66, 64)})) == 66
    assert token(samplers[77], np.arange(77), mask=far, **(fields | {"stop_ids": (66, 34)})) == 64


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocab", VOCABS)
def test_the_lowest_allowed_token_where_no_logit_is_left(
    samplers: dict[int, Sampler], vocab: int, temperature: float
) -> None:
    logits = np.full(vocab, -np.inf, np.float32)
    logits[5], logits[4] = np.nan, 3.0
    masks = [mask_of([vocab - 1, 5], vocab), mask_of([vocab - 1], vocab), mask_of([], vocab, beyond=-1)]
    rows = samplers[vocab].rows([(logits, Request(temperature=temperature, mask=mask)) for mask in masks])
    assert [r.token for r in rows] == [5, vocab - 1, 0]


# ---- log-probabilities


@pytest.mark.parametrize("vocab", VOCABS)
def test_logprobs_are_those_of_the_raw_logits(samplers: dict[int, Sampler], vocab: int) -> None:
    logits = logits_of(vocab, seed=2)
    logits[[vocab - 1, 2]] = logits.max() + 0.1
    exact = reference.log_softmax(logits)
    row = samplers[vocab].row(
        logits, Request(temperature=0.4, bias_ids=(4,), bias_values=(99.0,), logprobs=20)
    )
    assert row.token == 4
    assert row.logprob == pytest.approx(exact[4], abs=1e-6)
    n = min(20, vocab)
    order = reference.descending(logits)[:n]
    assert row.top_ids == order.tolist() + [-1] * (20 - n)
    assert row.top_logprobs[:n] == pytest.approx(exact[order].tolist(), abs=1e-6)
    assert row.top_logprobs[n:] == [-math.inf] * (20 - n)


@pytest.mark.parametrize("vocab", VOCABS)
def test_tokens_that_a_slot_names_are_reported_in_its_order(samplers: dict[int, Sampler], vocab: int) -> None:
    logits = logits_of(vocab, seed=6)
    exact, best = reference.log_softmax(logits), int(logits.argmax())
    ids = (vocab - 1, 0, 3, vocab + 5)
    asked = Request(bias_ids=ids, bias_values=(0.0,) * 4, num_reported=4, logprobs=0)
    row = samplers[vocab].row(logits, asked)
    assert (row.token, row.logprob) == (best, pytest.approx(exact[best], abs=2e-6))
    assert row.top_ids[:3] == list(ids[:3])
    assert row.top_logprobs[:3] == pytest.approx(exact[list(ids[:3])].tolist(), abs=2e-6)
    assert row.top_logprobs[3] == -math.inf
    assert row.top_ids[4:] == [-7] * (MAX_LOGPROBS - 4)


def test_alternatives_of_equal_logits_have_the_lowest_ids(samplers: dict[int, Sampler]) -> None:
    row = samplers[1000].row(np.full(1000, -5.0, np.float32), Request(logprobs=20))
    assert row.top_ids == list(range(20))
    assert row.top_logprobs == pytest.approx([-math.log(1000)] * 20, abs=1e-6)


def test_a_certain_token_has_no_positive_logprob(samplers: dict[int, Sampler]) -> None:
    logits = np.full(77, -100.0, np.float32)
    logits[3] = 0
    row = samplers[77].row(logits, Request(logprobs=1))
    assert (row.token, row.logprob, row.top_logprobs[0]) == (3, 0, 0)


def test_logprobs_are_left_alone_where_not_asked(samplers: dict[int, Sampler]) -> None:
    none, only_chosen = samplers[77].rows([(logits_of(77, seed=2), Request(logprobs=n)) for n in (-1, 0)])
    assert math.isnan(none.logprob)
    assert only_chosen.logprob < 0
    assert none.top_ids == only_chosen.top_ids == [-7] * MAX_LOGPROBS


def test_score_takes_the_token_that_stands_there(samplers: dict[int, Sampler]) -> None:
    logits = logits_of(77, seed=3)
    exact = reference.log_softmax(logits)
    score = {"kind": SCORE, "temperature": 1.0}
    rows = samplers[77].rows(
        [
            (logits, Request(tokens=(1, 2, 70), position=1, logprobs=2, mask=mask_of([3], 77), **score)),
            (logits, Request(tokens=(1, 77), **score)),
            (logits, Request(tokens=(1, -1), **score)),
        ]
    )
    assert (rows[0].token, rows[0].logprob) == (70, pytest.approx(exact[70], abs=1e-6))
    assert rows[0].top_ids[:3] == [*np.argsort(-logits)[:2].tolist(), -7]
    assert [(r.token, math.isnan(r.logprob)) for r in rows[1:]] == [(77, True), (-1, True)]


# ---- company


def test_rows_of_other_kinds_and_rows_that_are_not_there(samplers: dict[int, Sampler]) -> None:
    sampler, logits = samplers[77], logits_of(77, seed=9)
    alone = sampler.row(logits, Request(temperature=1.0, logprobs=3))
    kinds = (EMBED, SAMPLE, EMBED, SCORE)
    rows = sampler.rows(
        [(logits, Request(kind=k, temperature=1.0, logprobs=3, tokens=(1, 2))) for k in kinds]
    )
    assert rows[1].bits == alone.bits
    assert rows[0].bits == rows[2].bits
    assert math.isnan(rows[0].logprob)
    assert int(sampler.tables.counts[LOGIT_ROWS]) == 4
    assert math.isnan(sampler.outputs.logprobs[sampler.parity, 4])
    sampler.rows([])  # touches no token: the harness looks


def test_a_row_has_the_same_bits_in_any_company() -> None:
    asked: list[dict[str, Any]] = [
        {},
        {"temperature": 0.7, "seed": 1, "logprobs": 4},
        {"temperature": 1.0, "seed": 2, "top_p": 0.8, "logprobs": 20},
        {"temperature": 1.0, "seed": 3, "top_k": 40, "top_p": 0.9, "frequency_penalty": 0.5},
        {"temperature": 1.0, "seed": 4, "min_p": 0.02, "bias_ids": (3, 999), "bias_values": (4.0, 4.0)},
    ]
    cases = [(logits_of(1000, seed=i), Request(**fields)) for i, fields in enumerate(asked)]
    few, many = Sampler(1000, max_rows=5), Sampler(1000, max_rows=11)
    together = few.rows(cases)
    assert [many.rows([case])[0].bits for case in cases] == [r.bits for r in together]
    among = many.rows([*cases[::-1], *cases])
    assert [r.bits for r in among] == [r.bits for r in [*together[::-1], *together]]
