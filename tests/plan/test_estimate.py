"""Estimates: memory adds up, rates follow the load, layouts are those that there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.errors import UsageError
from firelane.parallel.shares import Shares
from firelane.plan.devices import find_devices
from firelane.plan.estimate import GIB, Estimate, PlanSetup, PlanWorkload, best, estimate, estimate_all
from firelane.plan.layout import ParallelLayout, layouts
from firelane.plan.report import fit_or_explain
from firelane.plan.steps import BALANCED_FOR, Clock, decode_shape, make_stages, prefill_shape, stage_times
from firelane.program.values import Weight
from tests.plan.published import KIMI_K25_TEXT, LLAMA_8B, NOWHERE, SCOUT, model_of, setup

EIGHT = setup(LLAMA_8B, "h100", "bf16")
EXPERTS = setup(SCOUT, "h200", "bf16")


def clock_of(found: PlanSetup, layout: ParallelLayout) -> Clock:
    model = found.model
    shares = Shares(program=model.program, tp=layout.tp, ep=layout.ep, cut=model.cut)
    return Clock(device=found.device, model=model, layout=layout, shares=shares)


@pytest.mark.parametrize("layout", layouts(EIGHT.model.program, 8), ids=str)
def test_weights_of_all_ranks_add_up(layout: ParallelLayout) -> None:
    """To the model's own, and what several ranks or stages have of the same."""
    program = EIGHT.model.program
    stages = make_stages(clock_of(EIGHT, layout))
    whole = sum(stage.weights_bytes for stage in stages) * layout.tp
    doubled = sum(
        weight.nbytes * (layout.tp * share - 1)
        for stage in stages
        for weight, share in stage.weight_shares.items()
    )
    seen: dict[Weight, int] = {}
    for stage in stages:
        for weight in stage.weight_shares:
            seen[weight] = seen.get(weight, 0) + 1
    assert set(seen) == set(program.weights)
    assert whole - doubled == pytest.approx(sum(w.nbytes * n for w, n in seen.items()), abs=64 * layout.pp)
    assert [op for stage in stages for op in stage.ops] == [*program.ops]


@pytest.mark.parametrize(
    "layout",
    [ParallelLayout(), ParallelLayout(tp=4), ParallelLayout(pp=4), ParallelLayout(tp=2, pp=2)],
    ids=str,
)
def test_memory_of_a_rank_adds_up_to_the_device(layout: ParallelLayout) -> None:
    found = estimate(EIGHT, layout, PlanWorkload())
    for memory in found.ranks:
        assert memory.taken + memory.left == EIGHT.device.memory_bytes
        assert min(memory.weights, memory.activations, memory.workspace, memory.runtime) > 0
    assert found.kv_bytes == pytest.approx(
        sum(memory.left for memory in found.ranks) * layout.tp * layout.dp, rel=1e-6
    )


@settings(max_examples=25, deadline=None)
@given(batch=st.integers(1, 400), context=st.sampled_from([64, 1000, 8000]))
def test_more_sequences_take_longer_and_give_more(batch: int, context: int) -> None:
    for layout in (ParallelLayout(), ParallelLayout(tp=2), ParallelLayout(pp=2), ParallelLayout(dp=2)):
        fewer = estimate(EIGHT, layout, PlanWorkload(batch=batch, context=context))
        more = estimate(EIGHT, layout, PlanWorkload(batch=2 * batch, context=context))
        assert more.decode_s >= fewer.decode_s * 0.999
        if more.sequences == 2 * batch:
            assert more.tokens_per_s >= fewer.tokens_per_s * 0.999


@pytest.mark.parametrize("context", [128, 1024, 16384])
def test_longer_sequences_take_longer(context: int) -> None:
    short = estimate(EIGHT, ParallelLayout(), PlanWorkload(batch=4, context=context))
    long = estimate(EIGHT, ParallelLayout(), PlanWorkload(batch=4, context=2 * context))
    assert long.decode_s > short.decode_s
    assert long.prefill_s > short.prefill_s * (1.9 if context > 1000 else 1)
    assert long.room.sequences <= short.room.sequences


@pytest.mark.parametrize(
    ("fewer", "more"), [("bf16", "lossless12"), ("lossless12", "int8"), ("int8", "int4")]
)
def test_fewer_bits_take_less_and_are_faster(fewer: str, more: str) -> None:
    wide, narrow = (
        estimate(setup(LLAMA_8B, "rtx4090", form), ParallelLayout(), PlanWorkload()) for form in (fewer, more)
    )
    assert narrow.weights_bytes < wide.weights_bytes
    assert narrow.decode_s < wide.decode_s
    assert narrow.start_s < wide.start_s
    assert narrow.room.many >= wide.room.many


@pytest.mark.parametrize(
    ("dtype", "times"), [("fp8", 2 / (1 + 2 / 128)), ("int8", 2 / (1 + 2 / 128)), ("bf16", 1)]
)
def test_narrower_keys_make_room(dtype: str, times: float) -> None:
    plain = estimate(EIGHT, ParallelLayout(), PlanWorkload(context=4096))
    coded = estimate(setup(LLAMA_8B, "h100", "bf16", dtype), ParallelLayout(), PlanWorkload(context=4096))
    assert coded.room.many / plain.room.many == pytest.approx(times, rel=0.02)


def test_sequences_that_find_no_room_wait() -> None:
    found = estimate(EIGHT, ParallelLayout(), PlanWorkload(batch=5000, context=8192))
    assert found.sequences == found.room.sequences < 5000


def test_a_server_gives_as_many_answers_as_it_takes_prompts() -> None:
    alone = estimate(EIGHT, ParallelLayout(), PlanWorkload(batch=64, context=100, output=300))
    prompts = estimate(EIGHT, ParallelLayout(), PlanWorkload(batch=64, context=1000, output=300))
    assert alone.decode_s < alone.serving_s < prompts.serving_s
    assert prompts.requests_per_s == 64 / (300 * prompts.serving_s)
    assert estimate(EIGHT, ParallelLayout(), PlanWorkload()).requests_per_s == 0


def test_stages_are_balanced_by_cost() -> None:
    clock = clock_of(EIGHT, ParallelLayout(pp=4))
    times = [t.total for t in stage_times(make_stages(clock), clock, decode_shape(*BALANCED_FOR))]
    assert max(times) < 1.1 * sum(times) / 4
    found = estimate(EIGHT, ParallelLayout(pp=4), PlanWorkload(batch=1024))
    assert 0 <= found.bubble < 0.1
    assert estimate(EIGHT, ParallelLayout(pp=4), PlanWorkload(batch=1)).bubble == pytest.approx(
        0.75, abs=0.02
    )


def test_ranks_share_work_and_pay_for_it() -> None:
    one, four = (estimate(EIGHT, ParallelLayout(tp=tp), PlanWorkload(batch=16)) for tp in (1, 4))
    assert one.times[0].exchange == 0
    assert four.times[0].exchange > 0
    assert one.decode_s / 4 < four.decode_s < one.decode_s


def test_equal_ops_are_timed_once() -> None:
    """The numbers of kinds lose nothing that times depend on."""
    for found in (EIGHT, EXPERTS, setup(KIMI_K25_TEXT, "h100")):
        clock = clock_of(found, ParallelLayout(tp=2, dp=2, ep=4 if found is not EIGHT else 1))
        for shape in (decode_shape(7, 9000), prefill_shape(100, 612)):
            each = [clock._time(op, shape) for op in found.model.program.ops]
            assert clock.times(shape) == each


def test_layouts_of_eight_devices() -> None:
    dense = layouts(EIGHT.model.program, 8)
    assert len(dense) == len(set(dense)) == 10
    assert all(layout.devices == 8 and layout.ep == 1 for layout in dense)
    experts = layouts(EXPERTS.model.program, 8)
    assert ParallelLayout(dp=8, ep=8) in experts
    assert all(layout.ep in (layout.tp, layout.tp * layout.dp) for layout in experts)
    assert layouts(EXPERTS.model.program, 8, tp=[8], ep=[8]) == [ParallelLayout(tp=8, ep=8)]
    assert layouts(EIGHT.model.program, 1) == [ParallelLayout()]


@pytest.mark.parametrize("fixed", [{"tp": [3]}, {"tp": [16]}, {"ep": [8]}, {"tp": [2], "pp": [2], "dp": [1]}])
def test_layouts_that_there_are_not(fixed: dict[str, list[int]]) -> None:
    with pytest.raises(UsageError, match="no such layout of 8 devices: tp x pp x dp is their number"):
        layouts(EIGHT.model.program, 8, **fixed)


def test_layouts_that_the_model_cannot_have_are_left_out() -> None:
    """40 heads, but not for 16 ranks."""
    found = estimate_all(EXPERTS, layouts(EXPERTS.model.program, 16), [PlanWorkload()])
    assert found
    assert all(e.layout.tp != 16 for e in found)
    with pytest.raises(UsageError, match="40 heads cannot be divided by 16"):
        estimate_all(EXPERTS, layouts(EXPERTS.model.program, 16, tp=[16]), [PlanWorkload()])


def test_the_best_is_that_of_all() -> None:
    found = estimate_all(EIGHT, layouts(EIGHT.model.program, 4), [PlanWorkload(batch=128, context=2048)])
    assert best(found, "latency").decode_s == min(e.decode_s for e in found)
    assert best(found, "throughput").tokens_per_s == max(e.tokens_per_s for e in found)
    assert best(found, "context").room.one == max(e.room.one for e in found)


def unfit(device: str, weights: str, count: int) -> str:
    found = setup(SCOUT, device, weights)
    estimates: list[Estimate] = estimate_all(found, layouts(found.model.program, count), [PlanWorkload()])
    with pytest.raises(Exception, match="does not fit") as caught:
        fit_or_explain([found], estimates, count)
    return str(caught.value)


def test_what_would_fit_is_told() -> None:
    text = unfit("h100", "bf16", 1)
    assert text.startswith(
        "llama4 with bf16 weights does not fit 1 x h100: at best (one device) a device of 79.6"
    )
    assert text.endswith("these would fit: --weights int4, or --device h100:4")
    assert "\n" not in text
    assert unfit("rtx4090", "int4", 1).endswith("these would fit: --device rtx4090:4")


def test_memory_kept_back_is_not_planned_with() -> None:
    plain = estimate(EIGHT, ParallelLayout(), PlanWorkload())
    less = estimate(replace(EIGHT, kept_back=10 * GIB), ParallelLayout(), PlanWorkload())
    assert plain.fullest.left - less.fullest.left == 10 * GIB


def test_a_cpu_keeps_half_of_what_is_left_for_the_cache() -> None:
    device, _ = find_devices("ryzen-7950x", Path(NOWHERE))
    found = estimate(
        PlanSetup(model=model_of(LLAMA_8B), device=device), ParallelLayout(), PlanWorkload(drive_gbps=1.0)
    )
    assert found.form == "lossless12"
    assert found.kv_bytes == pytest.approx(found.fullest.left / 2, rel=0.01)
    assert found.start_s == pytest.approx(0.5 + found.weights_bytes / 1e9, rel=0.01)
