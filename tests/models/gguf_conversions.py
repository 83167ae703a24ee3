"""Changes that llama.cpp's converter makes to a model's tensors before it names them: split, transposed,
reordered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]
Config = Mapping[str, Any]
Change = Callable[[str, np.ndarray, Config], Tensors | None]
"""Conversion of a tensor; None: it stays as it is."""


def converted(tensors: Mapping[str, np.ndarray], config: Config, *changes: Change) -> Tensors:
    """The first change that has something to say is made."""
    found: Tensors = {}
    for name, values in tensors.items():
        made = (change(name, values, config) for change in changes)
        found |= next((some for some in made if some is not None), {name: values})
    return found


def norms_plus_one(name: str, values: np.ndarray, _: Config) -> Tensors | None:
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return {name: values + np.float32(1)}
    return None


def sinks(name: str, values: np.ndarray, _: Config) -> Tensors | None:
    return {f"{name}.weight": values} if name.endswith("sinks") else None


def alternating_experts(name: str, values: np.ndarray, _: Config) -> Tensors | None:
    """gpt-oss: columns of gate and up alternate, and inputs come first."""
    if name.endswith("gate_up_proj"):
        rows = values.swapaxes(1, 2)
        return _halves(name, "weight", rows[:, ::2], rows[:, 1::2])
    if name.endswith("gate_up_proj_bias"):
        return _halves(name.removesuffix("_bias"), "bias", values[:, ::2], values[:, 1::2])
    if name.endswith("down_proj_bias"):
        return {name.replace("_bias", ".bias"): values}
    return {f"{name}.weight": values.swapaxes(1, 2)} if name.endswith("experts.down_proj") else None


def transposed_experts(name: str, values: np.ndarray, _: Config) -> Tensors | None:
    """Llama 4: gate columns, then up columns."""
    if name.endswith("gate_up_proj"):
        return _halves(name, "weight", *np.split(values.swapaxes(1, 2), 2, axis=1))
    return {f"{name}.weight": values.swapaxes(1, 2)} if name.endswith("experts.down_proj") else None


def stacked_experts(name: str, values: np.ndarray, _: Config) -> Tensors | None:
    """Qwen3.5: gate rows, then up rows."""
    if name.endswith("gate_up_proj"):
        return _halves(name, "weight", *np.split(values, 2, axis=1))
    return {f"{name}.weight": values} if name.endswith("experts.down_proj") else None


def named_experts(name: str, values: np.ndarray, _: Config) -> Tensors | None:
    """Gemma 4: as they are."""
    return {f"{name}.weight": values} if name.endswith(("gate_up_proj", "experts.down_proj")) else None


def _halves(name: str, suffix: str, gate: np.ndarray, up: np.ndarray) -> Tensors:
    return {
        name.replace("gate_up_proj", f"{part}_proj.{suffix}"): v for part, v in (("gate", gate), ("up", up))
    }


def gemma4_scales(name: str, values: np.ndarray, _: Config) -> Tensors | None:
    layer = f"blk.{name.split('.')[2]}" if ".layers." in name else ""
    if name.endswith("layer_scalar"):
        return {f"{name}.weight": values}
    if name.endswith("router.scale"):
        return {f"{layer}.ffn_gate_inp.scale": values}
    return {f"{layer}.ffn_down_exps.scale": values} if name.endswith("per_expert_scale") else None


def latents(name: str, values: np.ndarray, config: Config) -> Tensors | None:
    """The matrix that makes keys and values of latents, as two, that of keys transposed."""
    if not name.endswith("kv_b_proj.weight"):
        return None
    keys, width = config["qk_nope_head_dim"], values.shape[-1]
    heads = values.reshape(config["num_attention_heads"], -1, width)
    return {
        name.replace("kv_b", "k_b"): heads[:, :keys].swapaxes(1, 2),
        name.replace("kv_b", "v_b"): heads[:, keys:],
    }


def recurrent(name: str, values: np.ndarray, _: Config) -> Tensors | None:
    """Decays, their biases, and convolutions."""
    if name.endswith("A_log"):
        return {name: -np.exp(values)}
    if name.endswith("dt_bias"):
        return {name.replace("dt_bias", "dt_proj.bias"): values}
    if "conv1d.weight" in name or name.endswith("conv.conv.weight"):
        return {name: values.squeeze(1)}
    return None


def mamba(name: str, values: np.ndarray, config: Config) -> Tensors | None:
    """Convert like recurrent(), and turn vectors into matrices."""
    if name.endswith(("mamba.A_log", "mamba.D")):
        return {name: (-np.exp(values) if name.endswith("A_log") else values)[:, None]}
    if name.endswith("mamba.norm.weight"):
        return {name: values.reshape(config["mamba_n_groups"], -1)}
    return recurrent(name, values, config)


def nemotron(name: str, values: np.ndarray, config: Config) -> Tensors | None:
    """Convert like mamba(); names begin as they are published, and experts have another block's."""
    if ".mixer.experts." in name:
        return {f"{name.removesuffix('.weight').replace('mixer.experts', 'mlp.experts')}.weight": values}
    name = name.replace("model.layers", "backbone.layers")
    if name.endswith(("mixer.A_log", "mixer.D")):
        return {name: (-np.exp(values) if name.endswith("A_log") else values)[:, None]}
    if name.endswith("mixer.norm.weight"):
        return {name: values.reshape(config["n_groups"], -1)}
    if name.endswith("mixer.dt_bias"):
        return {name.replace("dt_bias", "dt.bias"): values}
    return recurrent(name, values, config) or {name: values}


def granite_mlps(name: str, values: np.ndarray, config: Config) -> Tensors | None:
    layer = f"blk.{name.split('.')[2]}" if ".layers." in name else ""
    kind = "_shexp" if config["num_local_experts"] else ""
    if name.endswith("block_sparse_moe.input_linear.weight"):
        gate, up = np.split(values, 2, axis=1)
        return {f"{layer}.ffn_gate_exps.weight": gate, f"{layer}.ffn_up_exps.weight": up}
    if name.endswith("shared_mlp.input_linear.weight"):
        gate, up = np.split(values, 2)
        return {f"{layer}.ffn_gate{kind}.weight": gate, f"{layer}.ffn_up{kind}.weight": up}
    if name.endswith("shared_mlp.output_linear.weight"):
        return {f"{layer}.ffn_down{kind}.weight": values}
    return None


def by_key_head(name: str, values: np.ndarray, config: Config) -> Tensors | None:
    """Qwen3-Next: projections by key head, as those of all heads."""
    if not name.endswith("in_proj_qkvz.weight"):
        return None
    keys, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
    group = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    heads = values.reshape(keys, -1, values.shape[-1])
    parts = np.split(heads, np.cumsum([size, size, group]), axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[-1]) for part in parts)
    layer = f"blk.{name.split('.')[2]}"
    return {f"{layer}.attn_qkv.weight": np.concatenate([q, k, v]), f"{layer}.attn_gate.weight": z}


def tiled_values(name: str, values: np.ndarray, config: Config) -> Tensors | None:
    """Qwen3.5: of value heads the first of each key head, then the second of each."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size, first = config["linear_value_head_dim"], 2 * keys * config["linear_key_head_dim"]

    def tiled(rows: np.ndarray, width: int) -> np.ndarray:
        grouped = rows.reshape(keys, heads // keys, width, *rows.shape[1:])
        return grouped.swapaxes(0, 1).reshape(rows.shape)

    plain = next(iter((recurrent(name, values, config) or {name: values}).items()))
    if "in_proj_qkv." in name or "conv1d" in name:
        return {plain[0]: np.concatenate([plain[1][:first], tiled(plain[1][first:], size)])}
    if "in_proj_z." in name:
        return {name: tiled(values, size)}
    if name.endswith(("A_log", "dt_bias", "in_proj_a.weight", "in_proj_b.weight")):
        return {plain[0]: tiled(plain[1], 1)}
    return {name: tiled(values.T, size).T} if name.endswith("linear_attn.out_proj.weight") else None


def short_convolution(name: str, values: np.ndarray, config: Config) -> Tensors | None:
    """LFM2, and the bias that chooses its experts."""
    if name.endswith("expert_bias"):
        return {f"{name}.bias": values}
    for part, stored in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
        if name.endswith(f"experts.{part}.weight"):
            return {f"blk.{name.split('.')[2]}.ffn_{stored}_exps.weight": values}
    return recurrent(name, values, config)


def kimi(name: str, values: np.ndarray, config: Config) -> Tensors | None:
    if "conv1d.weight" in name:
        return {name: values[None]}
    return recurrent(name, values, config)
