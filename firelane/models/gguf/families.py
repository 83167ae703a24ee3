"""The architectures of GGUF files that are served: what each is in config.json, and how its tensors lie.

After llama.cpp's converter (github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py): what it calls them, and
what it changes in the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from firelane.models.gguf.dense_configs import (
    attention_bias,
    deci,
    ernie4_5,
    exaone4,
    granite,
    llama,
    mistral,
    mistral3,
    phi3,
    seed_oss,
    windows,
)
from firelane.models.gguf.expert_configs import (
    ernie4_5_moe,
    glm4_moe,
    gpt_oss,
    llama4,
    minimax_m2,
    mixtral,
    qwen2_moe,
    qwen3_moe,
)
from firelane.models.gguf.family_names import (
    GEMMA4_NAMES,
    GEMMA_NAMES,
    GLM_NAMES,
    GPT_OSS_NAMES,
    GRANITE_HYBRID_NAMES,
    KIMI_LINEAR_NAMES,
    LFM2_NAMES,
    LLAMA4_NAMES,
    NEMOTRON_NAMES,
    QWEN2_MOE_NAMES,
    QWEN_NEXT_NAMES,
    SPARSE_BLOCK_NAMES,
)
from firelane.models.gguf.gemma_configs import gemma2, gemma3, gemma4
from firelane.models.gguf.latent_configs import GLM_FLASH_TOKENS, deepseek2, deepseek3, has_sigmoids
from firelane.models.gguf.metadata import Config, Metadata
from firelane.models.gguf.orders import Order, Shape, as_stored, pairs, tiled
from firelane.models.gguf.recurrent_configs import (
    granite_hybrid,
    kimi_linear,
    lfm2,
    lfm2_moe,
    nemotron_h,
    nemotron_h_moe,
    qwen3_next,
    qwen35,
)


def _nothing(_: Metadata) -> Config:
    return {}


@dataclass(frozen=True)
class GgufFamily:
    """architecture: in config.json. config: its keys beside those that all have, or in their place. names: of
    tensors, where they differ from those of most; see names.py. order: of rows and inputs, where it was
    changed. norm_plus: what was added to the weights of norms. float32: parts of names of matrices that the
    model multiplies in float32. shapes: of tensors in the model, by part, -1 for what is left."""

    architecture: str
    model_type: str
    config: Callable[[Metadata], Config] = _nothing
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    order: Callable[[str, Shape, int, Metadata], Order] = as_stored
    norm_plus: float = 0.0
    float32: frozenset[str] = frozenset()
    shapes: Mapping[str, Shape] = field(default_factory=dict[str, Shape])


def find(metadata: Metadata) -> GgufFamily | None:
    """None for an architecture that is not served."""
    name = metadata.architecture
    variant = VARIANTS.get(name)
    return FAMILIES.get(name + variant(metadata) if variant else name)


def served() -> list[str]:
    """Names of all architectures."""
    return sorted({name.split()[0] for name in FAMILIES})


def _of_llama(metadata: Metadata) -> str:
    return " with experts" if metadata.integer("expert_count", 0) else ""


def _of_olmo2(metadata: Metadata) -> str:
    return " with windows" if metadata.has("attention.sliding_window") else ""


def _of_mistral3(metadata: Metadata) -> str:
    return " with a temperature" if metadata.has("attention.temperature_scale") else ""


def _of_deepseek2(metadata: Metadata) -> str:
    if not has_sigmoids(metadata):
        return ""
    return " of GLM" if metadata.vocab_size == GLM_FLASH_TOKENS else " with sigmoids"


VARIANTS: dict[str, Callable[[Metadata], str]] = {
    "llama": _of_llama,
    "olmo2": _of_olmo2,
    "mistral3": _of_mistral3,
    "deepseek2": _of_deepseek2,
}
"""Choices that an architecture's name leaves open, as the rest of the metadata tells it."""
ROUTER = frozenset(["ffn_gate_inp"])
FAMILIES: dict[str, GgufFamily] = {
    "llama": GgufFamily("LlamaForCausalLM", "llama", llama, order=pairs),
    "llama with experts": GgufFamily(
        "MixtralForCausalLM", "mixtral", mixtral, names=SPARSE_BLOCK_NAMES, order=pairs
    ),
    "qwen2": GgufFamily("Qwen2ForCausalLM", "qwen2"),
    "qwen2moe": GgufFamily("Qwen2MoeForCausalLM", "qwen2_moe", qwen2_moe, names=QWEN2_MOE_NAMES),
    "qwen3": GgufFamily("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": GgufFamily("Qwen3MoeForCausalLM", "qwen3_moe", qwen3_moe),
    "qwen3vl": GgufFamily("Qwen3ForCausalLM", "qwen3"),
    "qwen3vlmoe": GgufFamily("Qwen3MoeForCausalLM", "qwen3_moe", qwen3_moe),
    "gemma2": GgufFamily("Gemma2ForCausalLM", "gemma2", gemma2, names=GEMMA_NAMES, norm_plus=1.0),
    "gemma3": GgufFamily("Gemma3ForCausalLM", "gemma3_text", gemma3, names=GEMMA_NAMES, norm_plus=1.0),
    "phi3": GgufFamily("Phi3ForCausalLM", "phi3", phi3, names={"ffn_up": "mlp.gate_up_proj"}),
    "olmo2": GgufFamily("Olmo2ForCausalLM", "olmo2"),
    "olmo2 with windows": GgufFamily("Olmo3ForCausalLM", "olmo3", lambda m: windows(m, 4)),
    "smollm3": GgufFamily("SmolLM3ForCausalLM", "smollm3", llama, order=pairs),
    "granite": GgufFamily("GraniteForCausalLM", "granite", granite, order=pairs),
    "exaone4": GgufFamily("Exaone4ForCausalLM", "exaone4", exaone4),
    "seed_oss": GgufFamily("SeedOssForCausalLM", "seed_oss", seed_oss),
    "glm4": GgufFamily("Glm4ForCausalLM", "glm4", attention_bias, names=GLM_NAMES),
    "glm4moe": GgufFamily("Glm4MoeForCausalLM", "glm4_moe", glm4_moe),
    "minimax-m2": GgufFamily(
        "MiniMaxM2ForCausalLM", "minimax_m2", minimax_m2, names=SPARSE_BLOCK_NAMES, float32=ROUTER
    ),
    "ernie4_5": GgufFamily("Ernie4_5ForCausalLM", "ernie4_5", ernie4_5),
    "ernie4_5-moe": GgufFamily(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        ernie4_5_moe,
        names={"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
        float32=ROUTER,
    ),
    "gpt-oss": GgufFamily("GptOssForCausalLM", "gpt_oss", gpt_oss, names=GPT_OSS_NAMES),
    "llama4": GgufFamily("Llama4ForCausalLM", "llama4_text", llama4, names=LLAMA4_NAMES),
    "deepseek2": GgufFamily("DeepseekV2ForCausalLM", "deepseek_v2", deepseek2),
    "deepseek2 with sigmoids": GgufFamily("DeepseekV3ForCausalLM", "deepseek_v3", deepseek3),
    "deepseek2 of GLM": GgufFamily("Glm4MoeLiteForCausalLM", "glm4_moe_lite", deepseek3),
    "qwen3next": GgufFamily(
        "Qwen3NextForCausalLM", "qwen3_next", qwen3_next, names=QWEN_NEXT_NAMES, norm_plus=1.0
    ),
    "qwen35": GgufFamily(
        "Qwen3_5ForCausalLM", "qwen3_5_text", qwen35, names=QWEN_NEXT_NAMES, order=tiled, norm_plus=1.0
    ),
    "qwen35moe": GgufFamily(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        qwen3_next,
        names=QWEN_NEXT_NAMES,
        order=tiled,
        norm_plus=1.0,
    ),
    "lfm2": GgufFamily("Lfm2ForCausalLM", "lfm2", lfm2, names=LFM2_NAMES),
    "lfm2moe": GgufFamily("Lfm2MoeForCausalLM", "lfm2_moe", lfm2_moe, names=LFM2_NAMES),
    "gemma4": GgufFamily("Gemma4ForCausalLM", "gemma4_text", gemma4, names=GEMMA4_NAMES),
    "granitehybrid": GgufFamily(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        granite_hybrid,
        names=GRANITE_HYBRID_NAMES,
        order=pairs,
    ),
    "kimi-linear": GgufFamily(
        "KimiLinearForCausalLM",
        "kimi_linear",
        kimi_linear,
        names=KIMI_LINEAR_NAMES,
        shapes={"ssm_a": (1, 1, -1, 1)},
    ),
    "nemotron_h": GgufFamily("NemotronHForCausalLM", "nemotron_h", nemotron_h, names=NEMOTRON_NAMES),
    "nemotron_h_moe": GgufFamily(
        "NemotronHForCausalLM", "nemotron_h", nemotron_h_moe, names=NEMOTRON_NAMES, float32=ROUTER
    ),
    "deci": GgufFamily("DeciLMForCausalLM", "nemotron-nas", deci, order=pairs),
    "mistral3": GgufFamily("MistralForCausalLM", "mistral", mistral, order=pairs),
    "mistral3 with a temperature": GgufFamily("Ministral3ForCausalLM", "ministral3", mistral3, order=pairs),
}
