"""Toy checkpoints of every supported family, written to disk as a hub would hold them: config, weights,
tokenizer.

Sizes are small and awkward (no multiple of a panel). Weights are drawn so that activations stay near one and
logits spread over several units: the margin of the best token is then far above rounding noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from firelane.models.registry import load_program
from firelane.program.recipes import Piece
from firelane.program.values import Weight
from tests.models import toy_dense, toy_experts, toy_latent, toy_recurrent
from tests.models.toy_config import BOS, EOS, MAX_LEN, PAD, SPECIALS, Config
from tests.models.toy_experts import EXPERTS
from tests.weights.files import write_safetensors

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PICKS_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts")

FAMILIES: dict[str, Callable[[], Config]] = {
    "llama2": toy_dense.llama2,
    "llama3": toy_dense.llama3,
    "llama_bias": toy_dense.llama_bias,
    "mistral": toy_dense.mistral,
    "qwen2": toy_dense.qwen2,
    "qwen3": toy_dense.qwen3,
    "ernie4_5": toy_dense.ernie4_5,
    "helium": toy_dense.helium,
    "gemma2": toy_dense.gemma2,
    "gemma3": toy_dense.gemma3,
    "gemma4": toy_dense.gemma4,
    "gemma4_e": toy_dense.gemma4_e,
    "olmo2": toy_dense.olmo2,
    "olmo3": toy_dense.olmo3,
    "smollm3": toy_dense.smollm3,
    "granite": toy_dense.granite,
    "exaone4": toy_dense.exaone4,
    "seed_oss": toy_dense.seed_oss,
    "phi3": toy_dense.phi3,
    "phi4_mini": toy_dense.phi4_mini,
    "glm4": toy_dense.glm4,
    "glm": toy_dense.glm,
    "ministral3": toy_dense.ministral3,
    "llama_nemotron": toy_dense.llama_nemotron,
    "mixtral": toy_experts.mixtral,
    "qwen2_moe": toy_experts.qwen2_moe,
    "qwen3_moe": toy_experts.qwen3_moe,
    "glm4_moe": toy_experts.glm4_moe,
    "minimax_m2": toy_experts.minimax_m2,
    "ernie4_5_moe": toy_experts.ernie4_5_moe,
    "deepseek_v2": toy_latent.deepseek_v2,
    "deepseek_v2_lite": toy_latent.deepseek_v2_lite,
    "deepseek_v3": toy_latent.deepseek_v3,
    "kimi_k2": toy_latent.kimi_k2,
    "mistral4": toy_latent.mistral4,
    "glm4_moe_lite": toy_latent.glm4_moe_lite,
    "deepseek_v32": toy_latent.deepseek_v32,
    "glm_moe_dsa": toy_latent.glm_moe_dsa,
    "gpt_oss": toy_experts.gpt_oss,
    "mimo_v2_flash": toy_experts.mimo_v2_flash,
    "llama4": toy_experts.llama4,
    "llama4_maverick": toy_experts.llama4_maverick,
    "gemma4_moe": toy_experts.gemma4_moe,
    "hy3": toy_experts.hy3,
    "qwen3_next": toy_recurrent.qwen3_next,
    "qwen3_5": toy_recurrent.qwen3_5,
    "qwen3_5_moe": toy_recurrent.qwen3_5_moe,
    "kimi_linear": toy_recurrent.kimi_linear,
    "nemotron_h": toy_recurrent.nemotron_h,
    "nemotron_3": toy_recurrent.nemotron_3,
    "granite_hybrid": toy_recurrent.granite_hybrid,
    "granite_hybrid_dense": toy_recurrent.granite_hybrid_dense,
    "lfm2": toy_recurrent.lfm2,
    "lfm2_moe": toy_recurrent.lfm2_moe,
}


def make_checkpoint(name: str, dtype: str, directory: Path, seed: int = 0, **changes: Any) -> Path:
    """Write family `name` with random weights in `dtype` (bfloat16, float32 or float16); returns the
    directory. changes: of its config.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = config_of(name, dtype) | changes
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    write_safetensors(directory / "model.safetensors", random_tensors(config, seed), dtype)
    _write_tokenizer(directory)
    return directory


def config_of(name: str, dtype: str) -> Config:
    """In bf16 each token uses all experts, and reads all positions: near ties fall another way there than in
    float32, and then logits of a toy have nothing in common."""
    config = FAMILIES[name]() | {"torch_dtype": dtype}
    if dtype == "bfloat16":
        config |= {key: EXPERTS for key in PICKS_KEYS if key in config}
        config |= {"topk_group": config["n_group"]} if "n_group" in config else {}
        config |= {"index_topk": MAX_LEN} if "index_topk" in config else {}
    return config


def random_tensors(config: Config, seed: int) -> dict[str, np.ndarray]:
    """All tensors of the model in float32."""
    rng = np.random.default_rng(seed)
    return {
        piece.tensor: random_tensor(rng, weight, piece)
        for weight in load_program(config).weights
        for piece in weight.pieces
    }


def random_tensor(rng: np.random.Generator, weight: Weight, piece: Piece) -> np.ndarray:
    tensor, values = piece.tensor, rng.standard_normal(piece.shape, np.float32)
    if tensor.endswith(("e_score_correction_bias", "expert_bias")):
        return values * np.float32(0.1)
    if tensor.endswith("A_log"):  # some heads forget within a token or two, others remember hundreds
        return values * np.float32(1.5) - np.float32(2.5)
    if tensor.endswith((".bias", "_bias")):
        return values * np.float32(0.3)
    if values.ndim == 1:
        return np.float32(1 - piece.plus) + values * np.float32(0.2)
    spread = 3.0 if tensor in ("lm_head.weight", "model.embed_tokens.weight") else 1.0
    return values * np.float32(spread * weight.k**-0.5)


def _write_tokenizer(directory: Path) -> None:
    """Byte-level, without merges: token i is byte i, then the special tokens."""
    byte_of = bytes_to_unicode()
    vocab = {byte_of[i]: i for i in range(256)}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    core.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": MAX_LEN,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    (directory / "generation_config.json").write_text(json.dumps(generation))


def bytes_to_unicode() -> dict[int, str]:
    """The printable stand-in of each byte in byte-level vocabularies (GPT-2's table)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    table = {b: chr(b) for b in printable}
    others = (b for b in range(256) if b not in table)
    return table | {b: chr(256 + i) for i, b in enumerate(others)}
