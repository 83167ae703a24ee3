"""The model whose tokens are to be drafted: frozen, read for its streams and its logits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Target:
    """A causal language model with its tokenizer, on one device, in evaluation mode."""

    directory: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def config(self) -> Any:
        """The configuration of the text model."""
        return self.model.config.get_text_config()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def embedding(self) -> Tensor:
        """The rows of the tokens, [vocabulary, hidden]."""
        return self.model.get_input_embeddings().weight

    @property
    def head(self) -> Tensor:
        """The rows that the last hidden state is multiplied with, [vocabulary, hidden]."""
        return self.model.get_output_embeddings().weight

    @property
    @torch.no_grad()
    def final_norm(self) -> Tensor:
        """The factors of the last norm, [hidden]; ones where the model has none."""
        ones = torch.ones(self.config.hidden_size, device=self.device, dtype=self.embedding.dtype)
        norm = getattr(self.model.base_model, "norm", None)
        return ones if norm is None else norm(ones)

    @torch.no_grad()
    def logits(self, rows: Tensor) -> Tensor:
        """Logits at each position of ``rows`` [batch, tokens]: float32 [batch, tokens, vocabulary]."""
        with autocast(self.device):
            return self.model(input_ids=rows, use_cache=False).logits.float()

    @torch.no_grad()
    def streams_and_logits(self, rows: Tensor, layer_ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The residual streams into the layers, joined [batch, tokens, layers * hidden], and the logits."""
        with autocast(self.device):
            made = self.model(input_ids=rows, use_cache=False, output_hidden_states=True)
        streams = torch.cat([made.hidden_states[i].float() for i in layer_ids], dim=-1)
        return streams, made.logits.float()


def autocast(device: torch.device) -> torch.autocast:
    """Matrix products in bf16."""
    return torch.autocast(device.type, torch.bfloat16)


def load_target(directory: Path, device: str) -> Target:
    """Load a checkpoint directory and freeze it.

    Raises SystemExit where transformers cannot read it as a causal language model with a tokenizer.
    """
    if not (directory / "config.json").is_file():
        raise SystemExit(f"{directory} is no checkpoint directory: it has no config.json")
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    try:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise SystemExit(f"{directory} cannot be loaded as a causal language model: {error}") from error
    target = Target(
        directory=directory, model=model.eval().requires_grad_(False).to(device), tokenizer=tokenizer
    )
    if len(tokenizer) > len(target.embedding):
        rows = len(target.embedding)
        raise SystemExit(
            f"the tokenizer of {directory} has {len(tokenizer)} tokens, its embedding {rows} rows"
        )
    return target


def saved_weights(directory: Path) -> dict[str, Tensor]:
    """The tensors of a head or a draft model. Raises SystemExit where they cannot be read."""
    try:
        return load_file(directory / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise SystemExit(f"{directory / 'model.safetensors'} cannot be read: {error}") from error


def published_rope(directory: Path) -> dict[str, Any]:
    """The rope settings as the target's own config.json spells them."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    names = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")
    return {name: config[name] for name in names if name in config}
