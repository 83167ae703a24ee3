"""Rows of the table of GGUF architectures: dense families, and those with experts whose tensors are as they
were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.models import gguf_conversions as gc
from tests.models import toy_dense, toy_experts
from tests.models.gguf_conversions import Change
from tests.models.toy_config import WINDOW, Config

GEMMA3_LAYERS = [*["sliding_attention"] * 5, "full_attention"]
LLAMA3_DIVISORS = "rope_freqs.weight"


@dataclass(frozen=True, kw_only=True)
class Row:
    """toy: a family's config; `change`: of keys, what a GGUF file cannot say. fields: of its metadata."""

    architecture: str
    toy: Callable[[], Config]
    change: dict[str, Any] = field(default_factory=dict[str, Any])
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    in_pairs: bool = False
    changes: tuple[Change, ...] = ()
    extra: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


def experts(count: int = toy_experts.EXPERTS, **more: Any) -> dict[str, Any]:
    return {"expert_count": count, "expert_used_count": 2, "expert_feed_forward_length": 44} | more


def llama3_divisors(config: Config) -> list[float]:
    """Compute the divisors from the wavelength of each pair, as the converter does it."""
    rope, dim = config.get("rope_parameters") or config["rope_scaling"], config.get("head_dim") or 16
    found: list[float] = []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        if turns > rope["high_freq_factor"]:
            found.append(1.0)
        elif turns < rope["low_freq_factor"]:
            found.append(rope["factor"])
        else:
            smooth = (turns - 1.0) / (4.0 - 1.0)
            found.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return found


def longrope() -> dict[str, list[float]]:
    scaling = toy_dense.phi4_mini()["rope_scaling"]
    return {f"rope_factors_{name}.weight": scaling[f"{name}_factor"] for name in ("long", "short")}


ROWS: dict[str, Row] = {
    "llama": Row(architecture="llama", toy=toy_dense.llama2, in_pairs=True),
    "llama, long": Row(
        architecture="llama",
        toy=toy_dense.llama3,
        in_pairs=True,
        extra={LLAMA3_DIVISORS: llama3_divisors(toy_dense.llama3())},
    ),
    "llama, biases": Row(
        architecture="llama",
        toy=toy_dense.llama_bias,
        fields={"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
        in_pairs=True,
    ),
    "mixtral": Row(
        architecture="llama",
        toy=toy_experts.mixtral,
        change={"sliding_window": None},
        fields=experts(),
        in_pairs=True,
    ),
    "qwen2": Row(architecture="qwen2", toy=toy_dense.qwen2, change={"use_sliding_window": False}),
    "qwen2moe": Row(
        architecture="qwen2moe",
        toy=toy_experts.qwen2_moe,
        change={"mlp_only_layers": []},
        fields=experts(expert_shared_feed_forward_length=52),
    ),
    "qwen3": Row(architecture="qwen3", toy=toy_dense.qwen3),
    "qwen3moe": Row(
        architecture="qwen3moe",
        toy=toy_experts.qwen3_moe,
        change={"decoder_sparse_step": 1},
        fields=experts(),
    ),
    "qwen3vl": Row(
        architecture="qwen3vl",
        toy=toy_dense.qwen3,
        fields={"rope.dimension_sections": [3, 3, 2, 0], "n_deepstack_layers": 3},
    ),
    "qwen3vlmoe": Row(
        architecture="qwen3vlmoe",
        toy=toy_experts.qwen3_moe,
        change={"decoder_sparse_step": 1},
        fields=experts(**{"rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 3}),
    ),
    "gemma2": Row(
        architecture="gemma2",
        toy=toy_dense.gemma2,
        change={"query_pre_attn_scalar": 32},
        fields={
            "attention.sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 15.0,
        },
        changes=(gc.norms_plus_one,),
    ),
    "gemma3": Row(
        architecture="gemma3",
        toy=toy_dense.gemma3,
        change={"query_pre_attn_scalar": 32, "num_hidden_layers": 6, "layer_types": GEMMA3_LAYERS},
        fields={
            "attention.sliding_window": WINDOW,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        changes=(gc.norms_plus_one,),
    ),
    "phi3": Row(
        architecture="phi3",
        toy=toy_dense.phi3,
        fields={"attention.sliding_window": WINDOW, "rope.scaling.original_context_length": 256},
    ),
    "phi4_mini": Row(
        architecture="phi3",
        toy=toy_dense.phi4_mini,
        fields={"rope.scaling.original_context_length": 256},
        extra=longrope(),
    ),
    "olmo2": Row(architecture="olmo2", toy=toy_dense.olmo2),
    "olmo3": Row(
        architecture="olmo2",
        toy=toy_dense.olmo3,
        fields={
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": [True, False],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": 1.2,
        },
    ),
    "smollm3": Row(
        architecture="smollm3",
        toy=toy_dense.smollm3,
        change={"no_rope_layers": None},
        in_pairs=True,
    ),
    "granite": Row(
        architecture="granite",
        toy=toy_dense.granite,
        fields={
            "attention.scale": 0.35,
            "embedding_scale": 6.0,
            "residual_scale": 0.6,
            "logit_scale": 0.5,
        },
        in_pairs=True,
    ),
    "exaone4": Row(
        architecture="exaone4",
        toy=toy_dense.exaone4,
        fields={"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": [True, False]},
        extra={LLAMA3_DIVISORS: llama3_divisors(toy_dense.exaone4())},
    ),
    "seed_oss": Row(architecture="seed_oss", toy=toy_dense.seed_oss),
    "glm4": Row(architecture="glm4", toy=toy_dense.glm4),
    "glm4moe": Row(
        architecture="glm4moe",
        toy=toy_experts.glm4_moe,
        fields=experts(
            expert_shared_count=2,
            leading_dense_block_count=1,
            expert_weights_scale=2.5,
            expert_weights_norm=True,
            expert_group_count=3,
            expert_group_used_count=2,
        ),
    ),
    "minimax-m2": Row(
        architecture="minimax-m2",
        toy=toy_experts.minimax_m2,
        change={"partial_rotary_factor": 0.25},
        fields=experts(),
    ),
    "ernie4_5": Row(architecture="ernie4_5", toy=toy_dense.ernie4_5),
    "ernie4_5, plain": Row(architecture="ernie4_5", toy=toy_dense.ernie4_5, change={"use_bias": False}),
    "ernie4_5-moe": Row(
        architecture="ernie4_5-moe",
        toy=toy_experts.ernie4_5_moe,
        fields=experts(
            expert_shared_count=2,
            leading_dense_block_count=1,
            interleave_moe_layer_step=1,
        ),
    ),
}
