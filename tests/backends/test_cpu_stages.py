"""Stages of all families: pages with the same numbers in each, and rows where the next one looks for them."""

from __future__ import annotations

import pytest

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.link import LinkSizes
from firelane.backends.ranks.member import GroupSizes, limits_of
from firelane.contract import StepLimits
from firelane.models.registry import load_program
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.program import Program
from tests.models.families import FAMILIES, config_of


def stages(family: str, pp: int = 2) -> tuple[Program, list[Program]]:
    program = load_program(config_of(family, "bfloat16"))
    return program, [rank_program(program, RankLayout(pp=pp), rank) for rank in range(pp)]


def layout(program: Program) -> Layout:
    limits = StepLimits(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_output_rows=36,
        max_model_len=64,
        block_size=16,
        num_blocks=8,
    )
    return Layout(program=program, limits=limits_of(program, limits), isa="avx512bf16")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_page_is_of_the_same_group_in_all_stages(family: str) -> None:
    whole, parts = stages(family)
    of_whole = {layer.layer: i for i, group in enumerate(whole.cache_groups) for layer in group.layers}
    found: dict[int, int] = {}
    for part in parts:
        assert part.spans == whole.spans
        assert len({group.bytes_per_token for group in part.cache_groups}) <= 1
        for number, place in layout(part).cache_places.items():
            assert number not in found
            found[number] = place.group
    assert found == of_whole


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_received_where_they_were_sent(family: str) -> None:
    _, (first, last) = stages(family)
    sent, received = layout(first).sent, layout(last).received
    assert sent
    assert list(sent.items()) == list(received.items())
    assert not layout(first).received
    assert not layout(last).sent


def test_several_values_lie_behind_each_other() -> None:
    """Each layer of this family reads of the embeddings, too."""
    _, parts = stages("gemma4_e")
    layouts = [layout(part) for part in parts]
    values = list(layouts[0].sent)
    assert len(values) == 2
    assert layouts[0].sent[values[1]] == layouts[0].row_bytes(values[0])
    assert LinkSizes.of(layouts).mail >= 64 * sum(map(layouts[0].row_bytes, values))


def test_limits_are_those_of_the_largest_stage() -> None:
    whole, parts = stages("qwen3_next")
    sizes = GroupSizes.of(parts)
    assert [part.state_bytes for part in parts] == [whole.state_bytes, 0]
    assert [part.kv_bytes_per_token for part in parts] == [0, whole.kv_bytes_per_token]
    assert (sizes.state_bytes, sizes.kv_bytes_per_token) == (whole.state_bytes, whole.kv_bytes_per_token)
    assert (sizes.spans, sizes.weights_bytes) == (whole.spans, whole.weights_bytes)
