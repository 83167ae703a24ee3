"""Ranks whose parts are of equal size have one library."""

from __future__ import annotations

import numpy as np
import pytest

from firelane.backends.cpu.alike import alike, op_parts
from firelane.backends.cpu.codegen.codegen import generate
from firelane.backends.cpu.codegen.layout import Layout
from firelane.models.registry import load_program
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.ops import Embed, ExpertLinear, Gather, Sample
from firelane.program.program import Program
from tests.backends.cpu_harness import fitted, limits
from tests.models.families import config_of

SIZES = {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1000}


def ranks(family: str, layout: RankLayout, **sizes: int) -> list[Program]:
    program = load_program(config_of(family, "bfloat16") | SIZES | sizes)
    return [alike(rank_program(program, layout, rank)) for rank in range(layout.ranks)]


def sources(programs: list[Program]) -> set[str]:
    sizes = [fitted(limits(), program) for program in programs]
    return {
        generate(Layout(program=program, limits=own, isa="avx512bf16"))
        for program, own in zip(programs, sizes, strict=True)
    }


@pytest.mark.parametrize(
    ("family", "layout", "sizes"),
    [
        ("llama3", RankLayout(tp=2), {}),
        ("llama3", RankLayout(tp=4), {}),
        ("mixtral", RankLayout(tp=2, experts=2), {}),
        ("deepseek_v3", RankLayout(experts=2), {"moe_intermediate_size": 64}),
    ],
)
def test_one_source_for_all_ranks(family: str, layout: RankLayout, sizes: dict[str, int]) -> None:
    assert len(sources(ranks(family, layout, **sizes))) == 1


def test_parts_of_other_sizes_have_another_source() -> None:
    assert len(sources(ranks("llama3", RankLayout(tp=2), intermediate_size=520))) == 2


def test_what_ranks_have_of_their_ops() -> None:
    first, second = ranks("mixtral", RankLayout(tp=2, experts=2))
    assert [type(op) for op in first.ops] == [type(op) for op in second.ops]
    found = np.concatenate([op_parts(first), op_parts(second)], axis=1).tolist()
    of = {type(op): parts for op, parts in zip(first.ops, found, strict=True)}
    assert of[Embed] == [0, 512, 512, 488]
    assert of[ExpertLinear] == [0, 3, 3, 3]
    assert of[Sample] == [0, 1, 0, 0]
    assert of[Gather] == [0, 0, 0, 0]


def test_one_rank_is_left_as_it_is() -> None:
    (alone,) = ranks("llama3", RankLayout())
    assert alone == alike(alone)
    assert dict(zip(map(type, alone.ops), op_parts(alone).tolist(), strict=True))[Sample] == [0, 1]
