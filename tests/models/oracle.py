"""Models that programs are compared with: those of transformers, and one of our own of a family that it does
not have."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from transformers.models.llama import modeling_llama as llama

from tests.models.toy_config import Config


def load_oracle(directory: Path) -> nn.Module:
    """In float32; asserts that it finds exactly its own tensors in the checkpoint."""
    config = json.loads((directory / "config.json").read_text())
    (architecture,) = config["architectures"]
    if architecture == "DeciLMForCausalLM":
        return load_nemotron(config, directory)
    model, info = getattr(transformers, architecture).from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


def load_nemotron(config: Config, directory: Path) -> nn.Module:
    tensors = {k: v.float() for k, v in load_file(directory / "model.safetensors").items()}
    model = LlamaNemotron(config)
    model.load_state_dict(tensors, strict=True)
    return model.eval()


class LlamaNemotron(nn.Module):
    """Layers of transformers' Llama, each with sizes of its own; those that do nothing are left out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        plain, blocks = sized(config), config["block_configs"]
        self.rotary = llama.LlamaRotaryEmbedding(plain)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(plain.vocab_size, plain.hidden_size)
        self.model.layers = nn.ModuleList(NemotronLayer(config, block, i) for i, block in enumerate(blocks))
        self.model.norm = llama.LlamaRMSNorm(plain.hidden_size, plain.rms_norm_eps)
        self.lm_head = nn.Linear(plain.hidden_size, plain.vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor) -> SimpleNamespace:
        x = self.model.embed_tokens(tokens)
        angles = self.rotary(x, torch.arange(tokens.shape[1])[None])
        for layer in self.model.layers:
            x = layer(x, angles)
        return SimpleNamespace(logits=self.lm_head(self.model.norm(x)))


class NemotronLayer(nn.Module):
    def __init__(self, config: Config, block: Config, number: int) -> None:
        super().__init__()
        self.attends, self.feeds = not block["attention"]["no_op"], not block["ffn"]["no_op"]
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        if self.attends:
            kv_heads = config["num_attention_heads"] // block["attention"]["n_heads_in_group"]
            self.self_attn = llama.LlamaAttention(sized(config, num_key_value_heads=kv_heads), number)
            self.input_layernorm = llama.LlamaRMSNorm(width, eps)
        if self.feeds:
            share = block["ffn"]["ffn_mult"]
            inner = 256 * (1 + (int(2 * share * width / 3) - 1) // 256)
            self.mlp = llama.LlamaMLP(sized(config, intermediate_size=inner))
            self.post_attention_layernorm = llama.LlamaRMSNorm(width, eps)

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if self.attends:
            unseen = torch.full((x.shape[1],) * 2, -torch.inf).triu(1)[None, None]
            x = x + self.self_attn(self.input_layernorm(x), angles, unseen)[0]
        return x + self.mlp(self.post_attention_layernorm(x)) if self.feeds else x


def sized(config: Config, **sizes: int) -> transformers.LlamaConfig:
    other = ("block_configs", "architectures", "torch_dtype", "model_type")
    known = {key: value for key, value in config.items() if key not in other and value is not None}
    made = transformers.LlamaConfig(**{**known, **sizes})
    made._attn_implementation = "eager"
    return made
