"""Configs of models with experts: what they mean, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from firelane.errors import UnsupportedModelError
from firelane.models.registry import load_program
from firelane.program.ops import ExpertGatedLinear, ExpertLinear, GatedLinear, Route
from firelane.program.values import StepShape
from tests.models.families import FAMILIES
from tests.models.toy_config import Config

REFUSED: dict[str, tuple[str, Config, str]] = {
    "no experts": ("qwen3_moe", {"num_experts": 0}, "num_experts = 0: a positive integer"),
    "no picks": ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok = 0: a positive integer"),
    "more picks than experts": ("mixtral", {"num_experts_per_tok": 7}, "= 7: .* num_local_experts = 6"),
    "experts 0 wide": ("qwen2_moe", {"moe_intermediate_size": 0}, "moe_intermediate_size = 0"),
    "a layer of no number": ("qwen3_moe", {"mlp_only_layers": ["1"]}, "mlp_only_layers = "),
    "a step of 0": ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
    "windows in no named layer": ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window = True"),
    "layers of another kind": ("hy3", {"mlp_layer_types": ["dense", "latent"]}, "mlp_layer_types"),
    "biases of MLPs": ("hy3", {"mlp_bias": True}, "mlp_bias = True"),
    "another layout of layers": ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq = 2: only 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    family, changes, why = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=why):
        load_program(FAMILIES[family]() | changes)


def count(kind: type[Any], family: str, **changes: Any) -> int:
    return sum(isinstance(op, kind) for op in load_program(FAMILIES[family]() | changes).ops)


def test_which_layers_have_experts() -> None:
    assert count(Route, "mixtral") == 2
    assert count(Route, "qwen3_moe") == count(GatedLinear, "qwen3_moe") == 2
    assert count(Route, "qwen3_moe", mlp_only_layers=[3]) == 1
    assert count(Route, "qwen3_moe", mlp_only_layers=None, decoder_sparse_step=1) == 4
    assert count(Route, "qwen2_moe") == count(ExpertLinear, "qwen2_moe") == 2  # one of them the shared one's


def test_shares_are_normalised_as_the_config_says() -> None:
    for normalise in (True, False):
        program = load_program(FAMILIES["qwen3_moe"]() | {"norm_topk_prob": normalise})
        assert all(op.normalise == normalise for op in program.ops if isinstance(op, Route))
    assert all(op.normalise for op in load_program(FAMILIES["mixtral"]()).ops if isinstance(op, Route))


def test_a_token_reads_the_experts_that_it_uses() -> None:
    program = load_program(FAMILIES["mixtral"]())
    one = StepShape(tokens=1, outputs=1, attended=1, context=1, sequences=1)
    experts = [op for op in program.ops if isinstance(op, ExpertGatedLinear | ExpertLinear)]
    bytes_of_all = sum(op.weight.nbytes for op in experts)
    assert sum(op.cost(one).weight_bytes for op in experts) == pytest.approx(bytes_of_all / 3)
