"""Ranks as text."""

from __future__ import annotations

import pytest

from firelane.models.registry import load_program
from firelane.parallel.describe import bubble, describe_ranks
from firelane.parallel.ranks import RankLayout
from tests.models.families import config_of


def test_tables_of_all_ranks() -> None:
    text = describe_ranks(load_program(config_of("llama3", "bfloat16")), RankLayout(tp=2, pp=2))
    tables = text.split("\n\n")
    assert [t.splitlines()[0].split(":")[0] for t in tables[:4]] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert all("AllReduce" in t and t.splitlines()[1].endswith("moved") for t in tables[:4])
    assert "Send" in tables[0]
    assert "Receive" in tables[2]
    assert "Sample" in tables[2]
    assert "Sample" not in tables[3]
    assert tables[4].startswith("stages take ")


def test_blocks_that_are_whole_are_named() -> None:
    text = describe_ranks(load_program(config_of("olmo2", "bfloat16")), RankLayout(tp=2))
    assert text.endswith("whole on every rank: layers.0.output_sum, layers.1.output_sum")


@pytest.mark.parametrize(
    ("costs", "share"), [([1.0, 1.0], 0.0), ([1.0, 3.0], 1 / 3), ([2.0, 2.0, 1.0], 1 / 6)]
)
def test_bubble(costs: list[float], share: float) -> None:
    assert bubble(costs) == pytest.approx(share)


def test_blocks_whose_rows_are_divided_are_named() -> None:
    program = load_program(config_of("deepseek_v3", "bfloat16"))
    text = describe_ranks(program, RankLayout.of(program, ep=2))
    assert text.endswith("rows divided among ranks: layers.0.middle, layers.1.middle, layers.2.middle")
