"""Shares of ranks: what they add up to, what is kept whole, and what cannot be divided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from firelane.errors import UsageError
from firelane.models.registry import load_program
from firelane.parallel.shares import Shares, cut_values, kv_share, spreads
from firelane.program.ops import (
    Attention,
    ExpertGatedLinear,
    ExpertLinear,
    HeadShape,
    LatentCache,
    Linear,
    Op,
    RopeAndCache,
)
from firelane.program.program import Program
from firelane.program.values import Weight
from tests.models import toy_dense, toy_experts, toy_latent
from tests.models.families import FAMILIES
from tests.models.toy_config import Config
from tests.plan.published import GPT_OSS_20B, LLAMA_8B, SCOUT

EVEN = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "hidden_size": 64,
    "head_dim": 16,
    "moe_intermediate_size": 32,
}


def shares(program: Program, tp: int, ep: int = 1) -> Shares:
    return Shares(program=program, tp=tp, ep=ep, cut=cut_values(program))


def weight_shares(program: Program, found: Shares) -> dict[Weight, float]:
    return {weight: found.op(op).weights for op in program.ops for weight in op.weights}


def even(config: Config) -> Config:
    return config | {key: value for key, value in EVEN.items() if key in config}


@pytest.mark.parametrize("family", FAMILIES)
def test_one_rank_has_all(family: str) -> None:
    program = load_program(FAMILIES[family]())
    found = shares(program, 1)
    for op in program.ops:
        share = found.op(op)
        assert (share.flops, share.weights, share.kept) == (1, 1, 1)
        assert (share.reduced, share.gathered) == (0, 0)


@pytest.mark.parametrize("family", ["llama3", "qwen3", "mixtral"])
def test_all_matrices_but_routers_are_cut(family: str) -> None:
    program = load_program(even(FAMILIES[family]()))
    for weight, share in weight_shares(program, shares(program, 2, ep=2)).items():
        whole = not weight.is_matrix or "router" in weight.name or weight.name.endswith("gate.weight")
        assert share == (1 if whole else 0.5), weight.name


@pytest.mark.parametrize("family", ["llama3", "kimi_k2", "qwen3_next", "lfm2_moe"])
@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_together_have_each_weight_at_least_once(family: str, tp: int) -> None:
    config = FAMILIES[family]()
    heads = {key: 4 for key in ("num_attention_heads", "num_key_value_heads")}
    program = load_program(config | heads | ({"head_dim": 16} if "head_dim" in config else {}))
    for weight, share in weight_shares(program, shares(program, tp)).items():
        assert 1 / tp <= share <= 1, weight.name


def test_each_block_of_a_layer_is_added_up_once() -> None:
    program = load_program(even(toy_dense.llama3()))
    reduced = [op for op in program.ops if shares(program, 2).op(op).reduced]
    layers = len(program.cache_layers)
    assert len(reduced) == 2 * layers + 1, "behind attention, behind the MLP, and the embedding"
    assert all(shares(program, 2).op(op).reduced == program.hidden_width for op in reduced)


def test_the_head_is_gathered() -> None:
    program = load_program(even(toy_dense.llama3()))
    assert program.head is not None
    share = shares(program, 2).op(program.head)
    assert (share.gathered, share.weights) == (program.vocab_size, 0.5)


def test_few_keys_are_kept_by_several_ranks() -> None:
    shape = HeadShape(heads=8, kv_heads=2, head_dim=16)
    assert [kv_share(shape, tp) for tp in (1, 2, 4, 8)] == [1, 0.5, 0.5, 0.5]
    program = load_program(even(toy_dense.llama3()))
    rope = next(op for op in program.ops if isinstance(op, RopeAndCache))
    s = rope.shape
    q, kv = s.q_width / 4, s.head_dim * 2
    assert shares(program, 4).value(rope.qkv) == (q + kv) / rope.qkv.width


def test_a_latent_is_kept_by_every_rank() -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    program = load_program(toy_latent.deepseek_v3() | heads)
    found = shares(program, 2)
    for op in program.ops:
        if isinstance(op, LatentCache):
            assert op.latent not in found.cut
            assert op.q in found.cut
        if isinstance(op, Attention):
            assert (found.op(op).kept, found.op(op).flops) == (1, 0.5)


def test_experts_are_spread_or_whole() -> None:
    program = load_program(even(toy_experts.mixtral()))
    experts = [op for op in program.ops if isinstance(op, ExpertGatedLinear | ExpertLinear)]
    count = experts[0].weight.matrices
    assert {shares(program, 1, ep=count).op(op).weights for op in experts} == {1 / count}
    assert {shares(program, 2).op(op).weights for op in experts} == {1}
    assert all(spreads(op, 2) for op in experts)


def test_one_expert_is_whole() -> None:
    """A shared expert behind a gate is an expert that every token picks."""
    program = load_program(even(toy_experts.qwen2_moe()))
    lone = [op for op in program.ops if isinstance(op, ExpertLinear) and op.weight.matrices == 1]
    assert lone
    assert not any(spreads(op, 2) for op in lone)
    assert {shares(program, 2, ep=2).op(op).weights for op in lone} == {1}


def with_heads(heads: int, kv_heads: int) -> Config:
    return even(toy_dense.llama3()) | {"num_attention_heads": heads, "num_key_value_heads": kv_heads}


@pytest.mark.parametrize(
    ("config", "tp", "ep", "message"),
    [
        (with_heads(6, 2), 4, 1, "6 heads cannot be divided by 4"),
        (with_heads(6, 3), 2, 1, "3 KV heads cannot be divided by 2"),
        (with_heads(4, 2), 8, 1, "4 heads for 8 ranks"),
        (even(toy_experts.mixtral()), 1, 4, "6 experts cannot be divided by 4"),
        (with_heads(4, 4) | {"intermediate_size": 90}, 4, 1, "90 columns of an MLP cannot be divided by 4"),
    ],
)
def test_what_cannot_be_divided_is_refused(config: Config, tp: int, ep: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shares(load_program(config), tp, ep)


def test_the_residual_stream_is_whole() -> None:
    for toy in FAMILIES.values():
        program = load_program(toy())
        cut = cut_values(program)
        summed = [op for op in program.ops if isinstance(op, Linear | ExpertLinear) and op.residual]
        assert all(op.out not in cut and op.residual not in cut for op in summed), program.name


def test_programs_without_a_head_have_shares() -> None:
    program = load_program(even(toy_dense.llama3()))
    ops: tuple[Op, ...] = program.ops[:3]
    found = shares(replace(program, ops=ops, head=None), 2)
    assert found.op(ops[0]).weights == 0.5


@pytest.mark.parametrize("config", [LLAMA_8B, SCOUT, GPT_OSS_20B], ids=["Llama 8B", "Scout", "gpt-oss-20b"])
@pytest.mark.parametrize("tp", [2, 8])
def test_ranks_really_hold_so_much(config: Config, tp: int) -> None:
    """But for biases, and experts and rows of the head that do not divide evenly."""
    shard = pytest.importorskip("firelane.parallel.shard").shard
    experts = pytest.importorskip("firelane.parallel.experts").experts
    program = load_program(config)
    found = shares(program, tp, ep=tp)
    held = sum(w.nbytes * share for w, share in weight_shares(program, found).items())
    assert held == pytest.approx(experts(shard(program, tp, 0), tp, 0).weights_bytes, rel=1e-4)
