"""All families, by several ranks, with the bits of one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from firelane.errors import UsageError
from firelane.models.registry import load_program
from firelane.parallel.describe import describe_ranks
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.parallel.shard import AttentionShare
from firelane.program.ops import AllReduce, Attention, Gather, Receive, Sample, Send
from firelane.program.program import Program
from tests.models.families import FAMILIES, PICKS_KEYS, config_of, random_tensors
from tests.models.toy_config import VOCAB_SIZE
from tests.parallel.runs import Toy

PROMPT = np.random.default_rng(5).integers(0, VOCAB_SIZE, 12).astype(np.int32)
WITH_EXPERTS = [name for name, config in FAMILIES.items() if not config().keys().isdisjoint(PICKS_KEYS)]
CASES = [
    *((family, RankLayout(tp=2)) for family in FAMILIES),
    *((family, RankLayout(pp=2)) for family in FAMILIES),
    *((family, RankLayout(experts=2, attention=AttentionShare.WHOLE)) for family in WITH_EXPERTS),
    *((family, RankLayout(tp=2, attention=AttentionShare.ROWS)) for family in FAMILIES),
    *((family, RankLayout(tp=2, experts=2, expert_columns=True)) for family in WITH_EXPERTS),
]


def toy(family: str, dtype: str = "float32") -> tuple[Program, dict[str, np.ndarray]]:
    config = config_of(family, dtype)
    return load_program(config), random_tensors(config, 0)


@cache
def one_rank(family: str, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """Logits and tokens."""
    run = Toy(*toy(family, dtype), RankLayout(), PROMPT)
    return run.logits(len(PROMPT), 2), run.state.tokens.copy()


@pytest.mark.parametrize(("family", "layout"), CASES, ids=str)
def test_the_bits_of_one_rank(family: str, layout: RankLayout) -> None:
    want, tokens = one_rank(family)
    run = Toy(*toy(family), layout, PROMPT)
    got = run.logits(len(PROMPT), 2)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    np.testing.assert_array_equal(run.state.tokens, tokens)


@pytest.mark.parametrize("family", ["llama2", "qwen3", "deepseek_v3", "gpt_oss", "qwen3_next"])
@pytest.mark.parametrize("layout", [RankLayout(tp=4, experts=4), RankLayout(tp=2, pp=2, experts=2)])
def test_the_bits_of_one_rank_in_bf16(family: str, layout: RankLayout) -> None:
    want, tokens = one_rank(family, "bfloat16")
    run = Toy(*toy(family, "bfloat16"), layout, PROMPT)
    got = run.logits(len(PROMPT), 2)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    np.testing.assert_array_equal(run.state.tokens, tokens)


def test_segments_change_the_bits_of_nothing_else() -> None:
    """A program of one rank has segments and no collectives."""
    program, _ = toy("mixtral")
    alone = rank_program(program, RankLayout(), 0)
    assert [type(op) for op in alone.ops] == [type(op) for op in program.ops]
    assert alone.weights == program.weights


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_have_together_what_one_has(family: str, tp: int) -> None:
    """Each number of a weight is on one rank at least, and matrices that are cut are on one alone. Two KV
    heads that four ranks share are on two of them each."""
    program, _ = toy(family)
    ranks = [rank_program(program, RankLayout(tp=tp, experts=tp), rank) for rank in range(tp)]
    for weight in program.weights:
        parts = [next(w for w in rank.weights if w.name == weight.name) for rank in ranks]
        whole = all(part.shape == weight.shape for part in parts)
        total = sum(part.nbytes for part in parts)
        assert whole or weight.nbytes <= total < tp * weight.nbytes, weight.name


def test_stages_have_together_what_one_has() -> None:
    program, _ = toy("gemma3")
    stages = [rank_program(program, RankLayout(pp=2), rank) for rank in range(2)]
    ops = [op for stage in stages for op in stage.ops if not isinstance(op, Send | Receive)]
    assert [op.outputs for op in ops] == [op.outputs for op in program.ops]
    sent, received = (op for stage in stages for op in stage.ops if isinstance(op, Send | Receive))
    assert isinstance(sent, Send)
    assert isinstance(received, Receive)
    assert sent.x == received.out
    assert [stage.head is not None for stage in stages] == [False, True]


def test_collectives_of_a_layer() -> None:
    """Two all-reduces a layer, one of the embedding, and one gathering of logits; the first rank alone
    draws."""
    program, _ = toy("llama3")
    for rank in range(2):
        made = rank_program(program, RankLayout(tp=2), rank)
        assert sum(isinstance(op, AllReduce) for op in made.ops) == 2 * 2 + 1
        assert sum(isinstance(op, Gather) for op in made.ops) == 1
        assert any(isinstance(op, Sample) for op in made.ops) == (rank == 0)
        attention = [op.shape for op in made.ops if isinstance(op, Attention)]
        assert [(s.heads, s.kv_heads) for s in attention] == [(3, 1)] * 2


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "qwen3_next"])
def test_ranks_of_several_hosts_have_attention_whole(family: str) -> None:
    """And with it the cache and states; MLPs, experts and the vocabulary are shared."""
    program, _ = toy(family)
    layout = RankLayout(experts=2, attention=AttentionShare.WHOLE)
    ranks = [rank_program(program, layout, rank) for rank in range(2)]
    whole = {weight.name: weight.shape for weight in program.weights}
    for rank in ranks:
        assert rank.cache_layers == program.cache_layers
        assert rank.state_layers == program.state_layers
        cut = {weight.name for weight in rank.weights if weight.shape != whole[weight.name]}
        assert {name for name in whole if ".experts" in name or name.endswith(".gate_up")} <= cut
        assert not {name for name in whole if "output" in name or "qkv" in name} & cut
    assert [sum(isinstance(op, Sample) for op in rank.ops) for rank in ranks] == [1, 0]
    assert "whole on every rank" in describe_ranks(program, layout)


@pytest.mark.parametrize(
    ("family", "hosts", "attention"),
    [
        ("mixtral", 1, AttentionShare.HEADS),
        ("mixtral", 2, AttentionShare.WHOLE),
        ("deepseek_v3", 1, AttentionShare.ROWS),
        ("minimax_m2", 1, AttentionShare.ROWS),
        ("minimax_m2", 2, AttentionShare.WHOLE),
    ],
)
def test_what_ranks_that_share_experts_share_of_attention(
    family: str, hosts: int, attention: AttentionShare
) -> None:
    """Heads, where each rank has keys of its own; rows of latents, and where a norm is over all heads;
    nothing where ranks have no memory in common."""
    program, _ = toy(family)
    assert RankLayout.of(program, ep=2, hosts=hosts).attention is attention
    apart = RankLayout.of(program, ep=2, hosts=hosts, one_cache=False)
    assert (apart.attention is AttentionShare.HEADS) == (attention is AttentionShare.HEADS)


def test_ranks_with_memory_in_common_have_columns_of_all_experts() -> None:
    """So each has equally much to do, whatever is picked; elsewhere they have experts by number."""
    program, _ = toy("mixtral")
    layout = RankLayout.of(program, ep=2)
    assert layout.expert_columns
    assert not RankLayout.of(program, ep=2, hosts=2).expert_columns
    assert not RankLayout.of(program, ep=2, one_cache=False).expert_columns
    ranks = [rank_program(program, layout, rank) for rank in range(2)]
    for weight in (weight for weight in program.weights if ".experts" in weight.name):
        parts = [next(w for w in rank.weights if w.name == weight.name) for rank in ranks]
        assert all(part.matrices == weight.matrices for part in parts)
        assert sum(part.rows for part in parts) == weight.rows


def test_a_tied_table_is_cut_once() -> None:
    program, _ = toy("llama3")
    ranks = [rank_program(program, RankLayout(tp=2), rank) for rank in range(2)]
    tables = [next(w for w in rank.weights if w.name == "embed") for rank in ranks]
    assert [table.rows for table in tables] == [128, VOCAB_SIZE - 128]
    assert all(rank.head is not None and rank.head.weight == t for rank, t in zip(ranks, tables, strict=True))


@pytest.mark.parametrize(
    ("layout", "match"),
    [
        ({"tp": 3}, "tensor parallel 3: sums are cut for 1, 2, 4, 8 ranks"),
        ({"tp": 16}, "tensor parallel 16"),
        ({"experts": 6}, "expert parallel 6: sums are cut for 1, 2, 4, 8 ranks"),
        ({"pp": 9}, "9 pipeline stages: the model can be cut into 1 to"),
        ({"tp": 2, "experts": 4}, "expert parallel 4 with tensor parallel 2"),
    ],
)
def test_numbers_of_ranks_that_no_cut_exists_for(layout: dict[str, int], match: str) -> None:
    program, _ = toy("mixtral")
    with pytest.raises(UsageError, match=match):
        rank_program(program, RankLayout(**layout), 0)


def test_more_ranks_than_experts_are_refused() -> None:
    program, _ = toy("mixtral")
    with pytest.raises(UsageError, match="expert parallel 8: a layer has 6 experts"):
        rank_program(program, RankLayout(experts=8), 0)
