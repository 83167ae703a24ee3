"""The CPU sampling kernel, on every target that this machine runs, against the NumPy reference."""

from __future__ import annotations

import ctypes as ct
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from firelane.contract import (
    MAX_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_IDS,
    SAMPLE,
    SAMPLING_DTYPE,
    SCORE,
)
from firelane.native.machine import cpu_identity, supported_isas
from firelane.program import sampling_reference as reference
from tests.backends.sampling_cases import cases, logits_of
from tests.backends.sampling_harness import (
    FIELDS,
    VOCABS,
    Kernel,
    Request,
    address,
    distribution,
    is_right_draw,
    mask_of,
)


@pytest.fixture(scope="module", params=supported_isas(cpu_identity()))
def kernel(request: pytest.FixtureRequest, kernel_cache: Path) -> Kernel:
    return Kernel(request.param, kernel_cache)


@pytest.fixture(scope="module")
def kernels(kernel_cache: Path) -> list[Kernel]:
    return [Kernel(isa, kernel_cache) for isa in supported_isas(cpu_identity())]


def draws(kernel: Kernel, logits: np.ndarray, count: int, **fields: Any) -> set[int]:
    return {kernel.row(logits, Request(seed=seed, **fields)).token for seed in range(count)}


# ---- the pieces


def test_layout_is_the_contracts(kernel: Kernel) -> None:
    out = (ct.c_int * (len(FIELDS) + 6))()
    kernel.lib.layout(out)
    assert SAMPLING_DTYPE.fields is not None
    offsets = [SAMPLING_DTYPE.fields[name][1] for name in FIELDS]
    constants = [SAMPLING_DTYPE.itemsize, MAX_LOGPROBS, MAX_BIAS, MAX_STOP_IDS, SAMPLE, SCORE]
    assert list(out) == offsets + constants


# Known answers published with Random123 (kat_vectors, philox4x32 10).
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(
    kernel: Kernel, counter: list[int], key: list[int], expected: list[int]
) -> None:
    out = (ct.c_uint32 * 4)()
    kernel.lib.philox((ct.c_uint32 * 4)(*counter), (ct.c_uint32 * 2)(*key), out)
    assert list(out) == expected


def test_uniform_is_uniform_over_positions_and_seeds(kernel: Kernel) -> None:
    by_position = [kernel.lib.uniform(2**63 + 5, p) for p in range(4000)]
    by_seed = [kernel.lib.uniform(s << 20, 17) for s in range(4000)]
    for sample in (by_position, by_seed):
        assert 0 <= min(sample) <= max(sample) < 1
        counts = np.histogram(sample, bins=20, range=(0, 1))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 50  # chi-square, 19 degrees of freedom: p = 1.3e-4


def test_exponential_error_bound(kernel: Kernel) -> None:
    x = np.concatenate([np.linspace(-87, 0, 160_000), -np.geomspace(1e-9, 1, 16_000)]).astype(np.float32)
    y = np.empty_like(x)
    kernel.lib.exponential(address(x), address(y), ct.c_int(len(x)))
    exact = np.exp(x.astype(np.float64))
    ulp = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(y - exact) / ulp).max() <= 1.5


def test_exponential_edges(kernel: Kernel) -> None:
    x = np.array([0, -0.0, -87.01, -1e30, -np.inf, np.nan] + [0] * 10, np.float32)
    y = np.empty_like(x)
    kernel.lib.exponential(address(x), address(y), ct.c_int(16))
    assert y[:6].tolist() == [1, 1, 0, 0, 0, 0]


# ---- greedy


@pytest.mark.parametrize("vocab", VOCABS)
def test_greedy_takes_the_largest_and_the_lowest_id_on_a_tie(kernel: Kernel, vocab: int) -> None:
    logits = logits_of(vocab, seed=1)
    assert kernel.row(logits, Request()).token == logits.argmax()
    best = logits.max() + 1
    for tied in ([vocab - 1], [vocab // 2, vocab - 1], [0, 3, vocab - 2]):
        with_ties = logits.copy()
        with_ties[tied] = best
        assert kernel.row(with_ties, Request()).token == min(tied)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, 0.7])
def test_nan_and_infinite_logits(kernel: Kernel, temperature: float) -> None:
    for vocab in VOCABS:
        ask = Request(temperature=temperature, logprobs=5, top_k=3, top_p=0.9)
        nothing = kernel.row(np.full(vocab, np.nan, np.float32), ask)
        assert nothing.token == 0
        assert math.isnan(nothing.logprob)
        assert nothing.top_ids[:5] == [-1] * 5
        assert kernel.row(np.full(vocab, -np.inf, np.float32), ask).token == 0
        one = np.full(vocab, np.nan, np.float32)
        one[5] = -3
        assert kernel.row(one, ask).token == 5
        one[6] = np.inf
        assert kernel.row(one, ask).token == 6


# ---- filters


def test_top_k_keeps_exactly_k_with_lower_ids_first(kernel: Kernel) -> None:
    flat = np.zeros(1000, np.float32)
    assert draws(kernel, flat, 200, temperature=1.0, top_k=3) == {0, 1, 2}
    flat[[900, 40]] = 0.5
    assert draws(kernel, flat, 200, temperature=1.0, top_k=4) == {0, 1, 40, 900}
    assert draws(kernel, flat, 20, temperature=1.0, top_k=1) == {40}


def test_top_k_treats_signed_zeros_as_equal(kernel: Kernel) -> None:
    logits = np.zeros(77, np.float32)
    logits[0] = -0.0
    assert draws(kernel, logits, 100, temperature=1.0, top_k=2) == {0, 1}


def test_top_k_ranks_by_logit_where_weights_round_to_one(kernel: Kernel) -> None:
    logits = np.ones(77, np.float32)
    logits[70] = np.nextafter(np.float32(1), np.float32(2))
    assert draws(kernel, logits, 20, temperature=1e6, top_k=1) == {70}


def test_top_p_keeps_the_fewest_that_reach_it(kernel: Kernel) -> None:
    logits = np.full(1000, -100, np.float32)
    logits[[10, 500, 999]] = np.log([0.5, 0.3, 0.2])
    assert draws(kernel, logits, 100, temperature=1.0, top_p=0.45) == {10}
    assert draws(kernel, logits, 100, temperature=1.0, top_p=0.7) == {10, 500}
    assert draws(kernel, logits, 100, temperature=1.0, top_p=0.85) == {10, 500, 999}
    assert draws(kernel, logits, 100, temperature=1.0, top_p=0.0) == {10}


def test_top_p_on_a_flat_row_takes_lower_ids(kernel: Kernel) -> None:
    assert draws(kernel, np.zeros(1000, np.float32), 300, temperature=1.0, top_p=0.005) == set(range(5))


def test_top_p_is_of_what_top_k_left(kernel: Kernel) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.1, 0.1, 0.05, 0.03, 0.02], np.float32))
    assert draws(kernel, logits, 200, temperature=1.0, top_k=2, top_p=0.5) == {0}
    assert draws(kernel, logits, 200, temperature=1.0, top_k=2, top_p=0.6) == {0, 1}


def test_min_p_is_relative_to_the_largest(kernel: Kernel) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.1, 0.1, 0.05, 0.03, 0.02], np.float32))
    assert draws(kernel, logits, 300, temperature=1.0, min_p=0.5) == {0, 1}
    assert draws(kernel, logits, 300, temperature=1.0, min_p=0.2) == {0, 1, 2, 3}
    assert draws(kernel, logits, 20, temperature=1.0, min_p=1.0) == {0}
    assert draws(kernel, logits, 300, temperature=1.0, min_p=0.2, top_p=0.5) == {0, 1}


@pytest.mark.parametrize(
    ("temperature", "expected"), [(1e-38, {3}), (1e-10, {3}), (3e38, set(range(7))), (np.inf, set(range(7)))]
)
def test_extreme_temperatures(kernel: Kernel, temperature: float, expected: set[int]) -> None:
    logits = np.array([1, 2, -50, 4, 0, -3, 3.9], np.float32)
    assert draws(kernel, logits, 200, temperature=temperature) == expected


@pytest.mark.parametrize(
    "fields", [{}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 30, "top_p": 0.9}]
)
def test_frequencies_match_probabilities(kernels: list[Kernel], fields: dict[str, float]) -> None:
    logits, count = logits_of(77, seed=5, scale=1.5), 3000
    request = Request(temperature=0.8, **fields)
    expected = distribution(logits, request) * count
    rows = [kernels[0].row(logits, Request(temperature=0.8, seed=s, **fields)) for s in range(count)]
    observed = np.bincount([r.token for r in rows], minlength=77)
    assert not observed[expected == 0].any()
    often = expected >= 5
    chi2 = ((observed[often] - expected[often]) ** 2 / expected[often]).sum()
    degrees = often.sum()
    assert chi2 < degrees + 4 * math.sqrt(2 * degrees)


# ---- adjustments


def test_repetition_penalty_counts_prompt_and_output_once(kernel: Kernel) -> None:
    logits = np.array([2, 1.5, -1, -1.5, -9, -9, -9], np.float32)
    history = {"tokens": (0, 0, 2), "position": 2, "prompt_len": 2}
    assert kernel.row(logits, Request(repetition_penalty=1.3, **history)).token == 0
    assert kernel.row(logits, Request(repetition_penalty=1.4, **history)).token == 1
    negative = np.array([-9, -9, -1, -1.5, -9, -9, -9], np.float32)
    assert kernel.row(negative, Request(repetition_penalty=1.6, **history)).token == 3


def test_frequency_and_presence_penalties_count_output_alone(kernel: Kernel) -> None:
    logits = np.array([2, 1.5, 1, 0, 0, 0, 0], np.float32)
    prompt_only = Request(tokens=(0, 0, 1), position=2, prompt_len=3, presence_penalty=2, frequency_penalty=2)
    assert kernel.row(logits, prompt_only).token == 0
    output = {"tokens": (0, 0, 0, 1), "position": 3, "prompt_len": 1}
    assert kernel.row(logits, Request(frequency_penalty=0.3, **output)).token == 0
    assert kernel.row(logits, Request(frequency_penalty=0.6, **output)).token == 2
    assert kernel.row(logits, Request(presence_penalty=0.6, **output)).token == 0
    assert kernel.row(logits, Request(presence_penalty=1.1, **output)).token == 2


def test_history_out_of_range_is_skipped(kernel: Kernel) -> None:
    logits = np.array([2, 1.5, 1, 0, 0, 0, 0], np.float32)
    fields = {"repetition_penalty": 2.0, "presence_penalty": 0.1, "frequency_penalty": 0.1}
    assert kernel.row(logits, Request(tokens=(-1, 7, 0, 2**30), position=3, **fields)).token == 1


def test_bias_adds_up_and_skips_ids_out_of_range(kernel: Kernel) -> None:
    logits = np.zeros(7, np.float32)
    ids, values = (3, 3, 5, 7, -1), (1.0, 1.0, 1.5, 100.0, 100.0)
    assert kernel.row(logits, Request(bias_ids=ids, bias_values=values)).token == 3


def test_stop_ids_are_banned_below_stop_from(kernel: Kernel) -> None:
    logits = np.array([0, 5, 1, 4, 0, 0, 0], np.float32)
    fields = {"stop_ids": (1, 3, 99), "stop_from": 10, "tokens": (0,) * 12}
    assert kernel.row(logits, Request(position=8, **fields)).token == 2
    assert kernel.row(logits, Request(position=9, **fields)).token == 1
    assert draws(kernel, logits, 50, temperature=9.0, position=8, **fields).isdisjoint({1, 3})


# ---- mask


@pytest.mark.parametrize("vocab", VOCABS)
def test_a_masked_row_draws_only_what_is_allowed(kernel: Kernel, vocab: int) -> None:
    logits = logits_of(vocab, seed=4, scale=0.5)
    for allowed in ({vocab - 1}, {0, vocab - 1}, set(range(1, vocab, 3)), {vocab // 2, 3}):
        mask = mask_of(allowed, vocab, beyond=-1)
        greedy = kernel.row(logits, Request(mask=mask)).token
        assert greedy == max(sorted(allowed), key=lambda t: logits[t])
        for fields in ({}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}):
            found = draws(kernel, logits, 60, temperature=1.0, mask=mask, **fields)
            assert found <= allowed
            assert len(found) > 1 or len(allowed) == 1


def test_a_full_mask_changes_no_bit(kernel: Kernel) -> None:
    for vocab in VOCABS:
        logits, full = logits_of(vocab, seed=6), mask_of(range(vocab), vocab)
        for fields in ({}, {"temperature": 0.9}, {"temperature": 0.9, "top_p": 0.8, "logprobs": 3}):
            for seed in range(20):
                asked = kernel.row(logits, Request(seed=seed, **fields))
                assert kernel.row(logits, Request(seed=seed, mask=full, **fields)).bits == asked.bits


def test_bias_cannot_bring_back_what_the_mask_forbids(kernel: Kernel) -> None:
    logits, mask = logits_of(77, seed=7), mask_of([5, 70], 77)
    ask = {"bias_ids": (6, 70), "bias_values": (100.0, 50.0), "mask": mask, "logprobs": 1}
    row = kernel.row(logits, Request(**ask))
    assert row.token == 70
    assert row.logprob == pytest.approx(reference.log_softmax(logits)[70], abs=2e-6)
    assert row.top_ids[0] == logits.argmax()


def test_a_ban_that_would_leave_nothing_is_ignored(kernel: Kernel) -> None:
    logits = np.array([0, 5, 1, 4, 0, 0, 0], np.float32)
    fields = {"stop_ids": (1, 3, 99, 1), "stop_from": 10, "tokens": (0,) * 12, "position": 8}
    assert kernel.row(logits, Request(mask=mask_of([1, 3], 7, beyond=-1), **fields)).token == 1
    assert kernel.row(logits, Request(mask=mask_of([3], 7, beyond=-1), **fields)).token == 3
    assert kernel.row(logits, Request(mask=mask_of([1, 3, 6], 7), **fields)).token == 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_lowest_allowed_token_where_no_logit_is_left(kernel: Kernel, temperature: float) -> None:
    for vocab in VOCABS:
        logits = np.full(vocab, -np.inf, np.float32)
        logits[5], logits[4] = np.nan, 3.0
        allowed = [vocab - 1, 5]
        assert kernel.row(logits, Request(temperature=temperature, mask=mask_of(allowed, vocab))).token == 5
        nothing = Request(temperature=temperature, mask=mask_of([], vocab, beyond=-1))
        assert kernel.row(logits, nothing).token == 0


# ---- log-probabilities


@pytest.mark.parametrize("vocab", VOCABS)
def test_logprobs_are_those_of_the_raw_logits(kernel: Kernel, vocab: int) -> None:
    logits = logits_of(vocab, seed=2)
    logits[[vocab - 1, 2]] = logits.max() + 0.1
    exact = reference.log_softmax(logits)
    row = kernel.row(logits, Request(temperature=0.4, bias_ids=(4,), bias_values=(99.0,), logprobs=20))
    assert row.token == 4
    assert row.logprob == pytest.approx(exact[4], abs=2e-6)
    n = min(20, vocab)
    order = reference.descending(logits)[:n]
    assert row.top_ids[:n] == order.tolist()
    assert row.top_logprobs[:n] == pytest.approx(exact[order].tolist(), abs=2e-6)
    assert row.top_ids[n:] == [-1] * (20 - n)


@pytest.mark.parametrize("vocab", VOCABS)
def test_tokens_that_a_slot_names_are_reported_in_its_order(kernel: Kernel, vocab: int) -> None:
    logits = logits_of(vocab, seed=6)
    exact, best = reference.log_softmax(logits), int(logits.argmax())
    ids = (vocab - 1, 0, 3, vocab + 5)
    asked = Request(bias_ids=ids, bias_values=(0.0,) * 4, num_reported=4, logprobs=0)
    row = kernel.row(logits, asked)
    assert (row.token, row.logprob) == (best, pytest.approx(exact[best], abs=2e-6))
    assert row.top_ids[:3] == list(ids[:3])
    assert row.top_logprobs[:3] == pytest.approx(exact[list(ids[:3])].tolist(), abs=2e-6)
    assert row.top_logprobs[3] == -math.inf
    assert row.top_ids[4:] == [-7] * (MAX_LOGPROBS - 4)


def test_logprobs_are_left_alone_where_not_asked(kernel: Kernel) -> None:
    row = kernel.row(logits_of(77, seed=2), Request(logprobs=-1))
    assert math.isnan(row.logprob)
    assert row.top_ids == [-7] * MAX_LOGPROBS
    only_chosen = kernel.row(logits_of(77, seed=2), Request(logprobs=0))
    assert only_chosen.logprob < 0
    assert only_chosen.top_ids == [-7] * MAX_LOGPROBS


def test_score_takes_the_token_that_stands_there(kernel: Kernel) -> None:
    logits = logits_of(77, seed=3)
    exact = reference.log_softmax(logits)
    row = kernel.row(logits, Request(kind=SCORE, tokens=(1, 2, 70), position=1, temperature=1.0, logprobs=2))
    assert (row.token, row.logprob) == (70, pytest.approx(exact[70], abs=2e-6))
    assert row.top_ids[:3] == [*np.argsort(-logits)[:2].tolist(), -7]
    assert math.isnan(kernel.row(logits, Request(kind=SCORE, tokens=(1, 77), position=0)).logprob)


# ---- everything at once


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_any_row_is_right_and_the_same_on_every_target(
    kernels: list[Kernel], case: tuple[np.ndarray, Request]
) -> None:
    logits, request = case
    rows = [k.row(logits, request) for k in kernels]
    assert len({r.bits for r in rows}) == 1
    assert is_right_draw(rows[0].token, logits, request)
