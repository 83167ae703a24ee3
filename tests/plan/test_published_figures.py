"""Figures that others have published of their servers, and what is planned for the same."""

from __future__ import annotations

import pytest

from firelane.plan.estimate import GIB, Estimate, PlanWorkload, estimate
from firelane.plan.layout import ParallelLayout
from tests.plan.published import GPT_OSS_20B, KIMI_K25_TEXT, LLAMA_8B, SCOUT, setup

SHARED = ParallelLayout(tp=2, ep=2)


@pytest.fixture(scope="module")
def scout() -> Estimate:
    return estimate(setup(SCOUT, "h200", "bf16"), SHARED, PlanWorkload(batch=8, context=16384))


@pytest.fixture(scope="module")
def kimi() -> Estimate:
    return estimate(
        setup(KIMI_K25_TEXT, "h100"), ParallelLayout(tp=8, ep=8), PlanWorkload(batch=8, context=4096)
    )


def test_scout_on_two_h200(scout: Estimate) -> None:
    """More than 56 GiB left for KV, 1.2 M tokens."""
    assert scout.weights_bytes / GIB == pytest.approx(200.7, abs=0.1)
    assert 56 < scout.kv_bytes / GIB < 80
    assert scout.room.one > 1.2e6


def test_scout_with_what_others_keep_back() -> None:
    """The published room is that of one sequence in 56 GiB: twelve layers in full, the others one chunk."""
    kept_back = int(9.1 * GIB)
    found = estimate(
        setup(SCOUT, "h200", "bf16", kept_back=kept_back), SHARED, PlanWorkload(context=1_200_000)
    )
    assert found.kv_bytes / GIB == pytest.approx(56.06, abs=0.5)
    assert found.room.one == pytest.approx(1.2e6, rel=0.02)
    assert found.room.sequences == 1
    many = estimate(setup(SCOUT, "h200", "bf16", kept_back=kept_back), SHARED, PlanWorkload(context=8191))
    assert many.room.many == pytest.approx(306e3, rel=0.06), "short prompts keep all layers in full"


def test_kimi_on_eight_h100(kimi: Estimate) -> None:
    """More than 30 GiB left, of all devices together; every rank keeps the whole latent."""
    assert sum(w for w in [kimi.weights_bytes]) / GIB == pytest.approx(553.4 + 14.2, abs=0.3)
    assert 30 < kimi.kv_bytes / GIB < 63
    each = kimi.kv_bytes / 8
    assert kimi.room.one == pytest.approx(each / (61 * 576 * 2), rel=0.01)


def test_kimi_in_stages_keeps_each_latent_once() -> None:
    found = estimate(setup(KIMI_K25_TEXT, "h100"), ParallelLayout(pp=8), PlanWorkload(batch=8, context=4096))
    assert found.weights_bytes / GIB == pytest.approx(553.4, abs=0.1)
    assert found.room.many > 4 * 94_000
    assert not found.problem


def test_gpt_oss_fits_a_gaming_gpu() -> None:
    found = estimate(setup(GPT_OSS_20B, "rtx4090"), ParallelLayout(), PlanWorkload(context=8192))
    assert found.weights_bytes / 1e9 == pytest.approx(13.8, abs=0.2), "as the checkpoint's files"
    assert not found.problem


def test_llama_8b_on_an_h100_nvl() -> None:
    """17.2 thousand tokens a second at 200 requests at a time: between the answers alone and all tokens, of
    prompts and answers as in conversations."""
    found = estimate(
        setup(LLAMA_8B, "h100-nvl", "bf16"),
        ParallelLayout(),
        PlanWorkload(batch=200, context=220, output=200),
    )
    answers = found.requests_per_s * 200
    assert answers < 17_200 < answers * 420 / 200 < 2 * 17_200
