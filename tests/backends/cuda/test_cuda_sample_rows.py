"""Sampling in Triton's interpreter: random rows with random requests, and a vocabulary of a real model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.backends.cuda.kernels.sampling.sample import SampleScratch
from firelane.backends.cuda.kernels.sampling.sample_layout import block_size, num_blocks
from firelane.contract import SCORE
from firelane.program import sampling_reference as reference
from tests.backends.cuda.cuda_sampling_harness import Case, Sampler
from tests.backends.cuda.host_device import HostDevice
from tests.backends.sampling_cases import cases, logits_of
from tests.backends.sampling_harness import VOCABS, Request, Row, is_right_draw, mask_of

REAL = 128256


@pytest.fixture(scope="module")
def samplers() -> dict[int, Sampler]:
    return {vocab: Sampler(vocab, max_rows=2) for vocab in VOCABS}


def assert_right(row: Row, logits: np.ndarray, request: Request) -> None:
    assert is_right_draw(row.token, logits, request)
    assert_logprobs(row, logits, request)


def assert_logprobs(row: Row, logits: np.ndarray, request: Request) -> None:
    x = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    if request.logprobs < 0 or x.max() == -np.inf:
        assert math.isnan(row.logprob)
        return
    exact = reference.log_softmax(x)
    if np.isnan(logits[row.token]):  # all that its mask allows
        assert math.isnan(row.logprob)
    else:
        assert row.logprob == pytest.approx(exact[row.token], abs=1e-6, rel=1e-6)
    order = [int(t) for t in reference.descending(x) if not np.isnan(logits[t])][: request.logprobs]
    missing = request.logprobs - len(order)
    assert row.top_ids == order + [-1] * missing + [-7] * (20 - request.logprobs)
    assert row.top_logprobs[: len(order)] == pytest.approx(exact[order].tolist(), abs=1e-6, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), vocab=st.sampled_from(VOCABS))
def test_any_row_is_right(samplers: dict[int, Sampler], data: st.DataObject, vocab: int) -> None:
    asked: list[Case] = data.draw(st.lists(cases(vocabs=(vocab,)), min_size=1, max_size=2))
    for row, case in zip(samplers[vocab].rows(asked), asked, strict=True):
        assert_right(row, *case)


def test_a_vocabulary_is_cut_into_blocks() -> None:
    assert [num_blocks(v) for v in (*VOCABS, 32000, REAL, 262144)] == [1, 3, 8, 8, 8, 32, 64]
    assert block_size(REAL) == 4096


def test_scratch_is_a_small_multiple_of_the_logits() -> None:
    scratch = SampleScratch.allocate(REAL, 4, HostDevice())
    assert 3 <= scratch.nbytes / (4 * REAL * 4) < 3.4


def test_a_real_vocabulary() -> None:
    peaked, flat = logits_of(REAL, seed=1), logits_of(REAL, seed=2, scale=0.5)
    peaked[::50] += 8
    peaked[REAL - 1] = peaked.max() + 0.5
    mask = mask_of(range(5, REAL, 9), REAL, beyond=-1)
    asked: list[Case] = [
        (peaked, Request(logprobs=20)),
        (
            flat,
            Request(
                temperature=1.0,
                seed=5,
                repetition_penalty=1.5,
                frequency_penalty=0.5,
                tokens=(*range(0, REAL, 9000), REAL - 1),
                position=15,
                prompt_len=8,
                bias_ids=(4095, 4096, REAL - 1),
                bias_values=(5.0, 6.0, -1.0),
                stop_ids=(1, 4097),
                stop_from=99,
            ),
        ),
        (peaked, Request(temperature=1.0, seed=6, top_p=0.95, logprobs=3)),
        (flat, Request(temperature=1.0, seed=7, top_p=0.9)),
        (peaked, Request(temperature=0.8, seed=8, top_k=50, top_p=0.9, mask=mask)),
        (flat, Request(kind=SCORE, tokens=(3, REAL - 2), logprobs=2)),
    ]
    rows = Sampler(REAL, max_rows=6).rows(asked)
    assert rows[0].token == REAL - 1
    for row, (logits, request) in zip(rows[:5], asked, strict=False):
        assert_right(row, logits, request)
    assert rows[5].token == REAL - 2
    assert_logprobs(rows[5], *asked[5])
