"""An EAGLE-3 head: one Llama layer that reads a token's embedding and the target's residual streams."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

STREAMS = 3


@dataclass(slots=True)
class Cache:
    """Keys and values of the head's steps so far, each [batch, heads, rows, head size]."""

    keys: list[Tensor]
    values: list[Tensor]


class Attention(nn.Module):
    """Attention that reads two hidden sizes: embedding and features."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = config.head_dim
        wide = 2 * config.hidden_size
        self.q_proj = nn.Linear(wide, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(wide, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(wide, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache) -> Tensor:
        """Attend, and add this step's keys and values to the cache."""
        q = self._split(self.q_proj(x), self.heads)
        k = self._split(self.k_proj(x), self.kv_heads)
        q, k = apply_rotary_pos_emb(q, k, *rotation)
        groups = self.heads // self.kv_heads
        cache.keys.append(k.repeat_interleave(groups, dim=1))
        cache.values.append(self._split(self.v_proj(x), self.kv_heads).repeat_interleave(groups, dim=1))
        out = _attend(q, cache)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.size)).transpose(1, 2)


class Mlp(nn.Module):
    """The gated MLP of Llama."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class MidLayer(nn.Module):
    """The layer; its residual is the features before their norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.hidden_norm = LlamaRMSNorm(size, eps)
        self.input_layernorm = LlamaRMSNorm(size, eps)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)

    def forward(
        self, embedded: Tensor, features: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache
    ) -> Tensor:
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(features)), dim=-1)
        residual = features + self.self_attn(x, rotation, cache)
        return residual + self.mlp(self.post_attention_layernorm(residual))


class EagleHead(nn.Module):
    """The head; its parameters have the published names. The embedding is the target's."""

    def __init__(self, config: LlamaConfig, draft_ids: Tensor) -> None:
        super().__init__()
        self.config = config
        self.midlayer = MidLayer(config)
        self.fc = nn.Linear(STREAMS * config.hidden_size, config.hidden_size, bias=False)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, len(draft_ids), bias=False)
        self.draft_ids: Tensor
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, embedded: Tensor, features: Tensor, position: int, cache: Cache) -> Tensor:
        """One drafting step of all rows; row r stands at ``position`` + r. Returns the layer's own output."""
        rows = torch.arange(position, position + features.shape[1], device=features.device)[None]
        return self.midlayer(embedded, features, self.rotary(features, rows), cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the draft vocabulary, float32."""
        return self.lm_head(self.norm(hidden)).float()


def _attend(q: Tensor, cache: Cache) -> Tensor:
    """Row r sees the first step's rows up to r, and what later steps made of row r itself."""
    keys, values = cache.keys, cache.values
    q = q.to(values[0].dtype)
    if len(keys) == 1:
        return scaled_dot_product_attention(q, keys[0].to(q.dtype), values[0], is_causal=True)
    scale = q.shape[-1] ** -0.5
    scores = (q @ keys[0].to(q.dtype).transpose(-1, -2)).float() * scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    own = [(q * k).sum(-1, keepdim=True).float() * scale for k in keys[1:]]
    weights = torch.cat((scores.masked_fill(hidden, -torch.inf), *own), dim=-1).softmax(-1)
    out = weights[..., : q.shape[-2]].to(q.dtype) @ values[0]
    for place, value in enumerate(values[1:]):
        out = out + weights[..., q.shape[-2] + place, None].to(q.dtype) * value
    return out
