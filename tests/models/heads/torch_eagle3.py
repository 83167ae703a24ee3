"""An EAGLE-3 head in torch, written from its paper and its configs, and random tensors for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear, silu

Tensors = dict[str, np.ndarray]
WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM = 80, 96, 5, 1, 16
VOCAB, DRAFT_VOCAB = 261, 100
THETA, EPS = 10000.0, 1e-5


def specforge_config(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
            "use_aux_hidden_state": True,
        },
        **changes,
    }


def speculators_config(**changes: Any) -> dict[str, Any]:
    plain = specforge_config()
    layer = {
        key: plain[key] for key in plain if key not in ("architectures", "draft_vocab_size", "eagle_config")
    }
    return {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "norm_before_residual": True,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        **changes,
    }


def random_head(seed: int = 0, *, layer: str = "midlayer", streams: int = 3, table: bool = False) -> Tensors:
    """Tensors in float32, and d2t; names as SpecForge or, with layer `layers.0`, as speculators has them."""
    rng = np.random.default_rng(seed)
    shapes = {
        "fc.weight": (WIDTH, streams * WIDTH),
        f"{layer}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, 2 * WIDTH),
        f"{layer}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, 2 * WIDTH),
        f"{layer}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, 2 * WIDTH),
        f"{layer}.self_attn.o_proj.weight": (WIDTH, HEADS * HEAD_DIM),
        f"{layer}.mlp.gate_proj.weight": (INNER, WIDTH),
        f"{layer}.mlp.up_proj.weight": (INNER, WIDTH),
        f"{layer}.mlp.down_proj.weight": (WIDTH, INNER),
        "lm_head.weight": (DRAFT_VOCAB, WIDTH),
    }
    if table:
        shapes["embed_tokens.weight"] = (VOCAB, WIDTH)
    tensors: Tensors = {
        name: rng.standard_normal(shape).astype(np.float32)
        * np.float32((3 if "lm_head" in name else 1) * shape[1] ** -0.5)
        for name, shape in shapes.items()
    }
    norms = [f"{layer}.{norm}" for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm")]
    for name in (*norms, "norm"):
        tensors[f"{name}.weight"] = norm_weight(rng, WIDTH)
    ids = np.sort(rng.permutation(VOCAB)[:DRAFT_VOCAB])
    tensors["d2t"] = (ids - np.arange(DRAFT_VOCAB)).astype(np.int64)
    return tensors


def norm_weight(rng: np.random.Generator, width: int) -> np.ndarray:
    return (1 + 0.2 * rng.standard_normal(width)).astype(np.float32)


class TorchHead:
    """A head of these tensors. `run` computes a whole sequence of rows without a cache."""

    def __init__(
        self,
        tensors: Tensors,
        table: np.ndarray,
        *,
        norm_before_residual: bool = False,
        norm_before_fc: bool = False,
        fc_norm: bool = False,
        norm_output: bool = False,
    ) -> None:
        self.t = {name.replace("midlayer", "layers.0"): torch.tensor(v) for name, v in tensors.items()}
        self.table = torch.tensor(table)
        self.norm_before_residual, self.norm_before_fc = norm_before_residual, norm_before_fc
        self.fc_norm, self.norm_output = fc_norm, norm_output

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.t[f"{name}.weight"]

    def project(self, streams: torch.Tensor) -> torch.Tensor:
        """streams: [rows, 3 * width]."""
        if self.norm_before_fc:
            streams = self.norm(streams, "input_norm")
        if self.fc_norm:
            parts = streams.chunk(streams.shape[-1] // WIDTH, -1)
            streams = torch.cat([self.norm(p, f"fc_norm.{i}") for i, p in enumerate(parts)], -1)
        return linear(streams, self.t["fc.weight"])

    def run(self, tokens: list[int], features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens: that behind each row; features: [rows, width], projected. Logits and what is fed back."""
        embedded = self.norm(self.table[torch.tensor(tokens)], "layers.0.input_layernorm")
        normed = self.norm(features, "layers.0.hidden_norm")
        residual = normed if self.norm_before_residual else features
        x = residual + self.attention(torch.cat([embedded, normed], -1))
        y = self.norm(x, "layers.0.post_attention_layernorm")
        gate, up = (linear(y, self.t[f"layers.0.mlp.{part}_proj.weight"]) for part in ("gate", "up"))
        x = x + linear(silu(gate) * up, self.t["layers.0.mlp.down_proj.weight"])
        out = self.norm(x, "norm")
        return linear(out, self.t["lm_head.weight"]), out if self.norm_output else x

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        q, k, v = (
            linear(x, self.t[f"layers.0.self_attn.{part}_proj.weight"])
            .view(rows, -1, HEAD_DIM)
            .transpose(0, 1)
            for part in "qkv"
        )
        q, k = turned(q), turned(k).expand(HEADS, -1, -1)
        unseen = torch.full((rows, rows), -torch.inf).triu(1)
        scores = q @ k.transpose(-1, -2) * HEAD_DIM**-0.5 + unseen
        heads = (scores.softmax(-1) @ v.expand(HEADS, -1, -1)).transpose(0, 1).reshape(rows, -1)
        return linear(heads, self.t["layers.0.self_attn.o_proj.weight"])

    def draft(self, tokens: list[int], streams: np.ndarray, count: int) -> list[int]:
        """The greedy draft behind `tokens`, whose rows but the last have these streams: [tokens - 1, 3W]."""
        rows, features = tokens[1:], self.project(torch.tensor(streams))
        drafted: list[int] = []
        for _ in range(count):
            logits, told = self.run(rows, features)
            number = int(logits[-1].argmax())
            drafted.append(number + int(self.t["d2t"][number]))
            rows, features = [*rows, drafted[-1]], torch.cat([features, told[-1:]])
        return drafted


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotated by position: [heads, positions, head_dim]."""
    half = HEAD_DIM // 2
    angles = torch.arange(x.shape[1])[:, None] * THETA ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
