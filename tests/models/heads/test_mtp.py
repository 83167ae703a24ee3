"""Programs of layers that predict tokens, against transformers: a model of one such layer alone, which begins
with what the layer joins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firelane.errors import UnsupportedModelError
from firelane.models.registry import load_predictor
from tests.models.families import config_of, random_tensors
from tests.models.heads.head_run import Tensors, run
from tests.models.oracle import load_oracle
from tests.weights.files import write_safetensors

ROWS = 20
NEXTN = {"num_nextn_predict_layers": 1}
QWEN = {"mtp_num_hidden_layers": 1}
PLAIN = {"use_sliding_window": False, "sliding_window": None, "tie_word_embeddings": False}
MIMO = NEXTN | PLAIN | {"architectures": ["MiMoForCausalLM"], "attention_bias": True}
SPARSE, FULL = {"mlp_layer_types": ["sparse"]}, {"layer_types": ["full_attention"]}
CHOSEN = {"index_topk": 7}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "deepseek_v3": (NEXTN, {"first_k_dense_replace": 0}),
    "glm4_moe": (NEXTN, {"first_k_dense_replace": 0}),
    "glm4_moe_lite": (NEXTN, {"first_k_dense_replace": 0} | SPARSE),
    "deepseek_v32": (NEXTN | CHOSEN, CHOSEN | {"first_k_dense_replace": 0}),
    "glm_moe_dsa": (NEXTN | CHOSEN, CHOSEN | {"first_k_dense_replace": 0, "indexer_types": ["full"]}),
    "hy3": (NEXTN, SPARSE | {"first_k_dense_replace": 0}),
    "qwen3_next": ({}, FULL | {"mlp_only_layers": [], "decoder_sparse_step": 1}),
    "qwen3_5": (QWEN, FULL),
    "qwen3_5_moe": (QWEN, FULL),
    "qwen2": (MIMO, PLAIN),
}
"""By family, keys of the whole model's config for its predicting layers, and those of one layer alone."""


def placed(name: str, layers: int) -> dict[str, str]:
    """Places of the layer's tensors in the checkpoint, and of what joins its inputs."""
    if name == "qwen2":
        place = "model.mtp_layers.0"
        norms = {"e": f"{place}.token_layernorm", "h": f"{place}.hidden_layernorm"}
        norms |= {"join": f"{place}.input_proj", "model.norm": f"{place}.final_layernorm"}
        return {"model.layers.0": place, **norms}
    if name.startswith("qwen"):
        norms = {"e": "mtp.pre_fc_norm_embedding", "h": "mtp.pre_fc_norm_hidden", "join": "mtp.fc"}
        return {"model.layers.0": "mtp.layers.0", "model.norm": "mtp.norm", **norms}
    layer = f"model.layers.{layers}"
    last = "final_layernorm" if name == "hy3" else "shared_head.norm"
    norms = {"e": f"{layer}.enorm", "h": f"{layer}.hnorm", "join": f"{layer}.eh_proj"}
    return {"model.layers.0": layer, "model.norm": f"{layer}.{last}", **norms}


def in_checkpoint(alone: Tensors, places: dict[str, str], width: int) -> Tensors:
    rng = np.random.default_rng(5)
    found = {}
    for name, values in alone.items():
        begin = next((b for b in ("model.layers.0", "model.norm") if name.startswith(f"{b}.")), "")
        found[places[begin] + name.removeprefix(begin) if begin else name] = values
    for norm in ("e", "h"):
        found[f"{places[norm]}.weight"] = rng.standard_normal(width).astype(np.float32) * np.float32(0.2)
    join = rng.standard_normal((width, 2 * width)).astype(np.float32)
    return found | {f"{places['join']}.weight": join * np.float32((2 * width) ** -0.5)}


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_what_is_told(name: str, tmp_path: Path) -> None:
    says, of_one = FAMILIES[name]
    config = config_of(name, "float32") | says
    one = {**config_of(name, "float32"), **of_one, "num_hidden_layers": 1}
    alone, width = random_tensors(one, 1), config["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(one))
    write_safetensors(tmp_path / "model.safetensors", alone)
    oracle = load_oracle(tmp_path)
    places = placed(name, config["num_hidden_layers"])
    tensors = in_checkpoint(alone, places, width)
    rows = np.random.default_rng(2).standard_normal((ROWS, 2 * width)).astype(np.float32) * 2
    logits, told = run(load_predictor(config), tensors, rows)
    plus = 1.0 if name.startswith("qwen3") else 0.0

    def normed(x: torch.Tensor, norm: str) -> torch.Tensor:
        weight = torch.tensor(tensors[f"{places[norm]}.weight"]) + plus
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + one["rms_norm_eps"]) * weight

    e, h = torch.tensor(rows).chunk(2, -1)
    parts = [normed(e, "e"), normed(h, "h")]
    joined = torch.cat(parts[::-1] if name == "qwen2" else parts, -1)
    joined = joined @ torch.tensor(tensors[f"{places['join']}.weight"]).T
    with torch.no_grad():
        found = oracle(inputs_embeds=joined[None], output_hidden_states=True)
    assert np.ptp(found.logits.numpy()) > 8
    np.testing.assert_allclose(logits, found.logits[0].numpy(), rtol=0, atol=2e-4)
    np.testing.assert_allclose(told, found.hidden_states[-1][0].numpy(), rtol=0, atol=2e-4)


def test_models_without() -> None:
    with pytest.raises(UnsupportedModelError, match="num_nextn_predict_layers"):
        load_predictor(config_of("deepseek_v3", "float32") | {"num_nextn_predict_layers": 0})
    with pytest.raises(UnsupportedModelError, match="not known of LlamaForCausalLM"):
        load_predictor(config_of("llama3", "float32"))
