"""A small Llama with the target's vocabulary, distilled from the target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tools.drafting.target import Target, autocast, saved_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftShape:
    """The sizes of a draft model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int


def make_draft(target: Target, shape: DraftShape, seed: int) -> LlamaForCausalLM:
    """A Llama with tied embeddings, which start as the target's, in its principal directions."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_config(target, shape)).to(target.device)
    with torch.no_grad():
        rows = target.head.float()
        directions = torch.linalg.svd(rows, full_matrices=False).Vh[: shape.hidden]
        start = rows @ directions.T
        model.get_input_embeddings().weight.copy_(start * (rows.norm() / start.norm()))
        model.model.norm.weight.fill_(target.final_norm.float().mean())
    return model.train()


def load_draft(model: LlamaForCausalLM, directory: Path) -> None:
    """Give the model the weights that were saved in ``directory``.

    Raises SystemExit where they are those of a model of other sizes.
    """
    weights = saved_weights(directory)
    own = {name: weight.shape for name, weight in model.named_parameters()}
    if own != {name: weight.shape for name, weight in weights.items()}:
        raise SystemExit(f"{directory} has no model of these sizes: give the options that it was made with")
    model.load_state_dict({name: weight.float() for name, weight in weights.items()}, strict=False)


def distillation_loss(model: LlamaForCausalLM, target: Target, rows: Tensor) -> Tensor:
    """Mean cross entropy in nats against the target's distribution at each position."""
    wanted = target.logits(rows).softmax(-1)
    with autocast(rows.device):
        drafted = model(input_ids=rows, use_cache=False).logits.float()
    return -(wanted * drafted.log_softmax(-1)).sum(-1).mean()


@torch.no_grad()
def matches(model: LlamaForCausalLM, rows: Tensor) -> Tensor:
    """The rows whose likeliest next token is the one that follows: bool [batch, tokens - 1]."""
    with autocast(rows.device):
        drafted = model(input_ids=rows, use_cache=False).logits
    return drafted[:, :-1].argmax(-1) == rows[:, 1:]


def check_draft(target: Target, shape: DraftShape) -> None:
    """Raises SystemExit where the sizes do not fit each other or the target."""
    if min(shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.intermediate) < 1:
        raise SystemExit("the sizes of a draft model start at 1")
    if shape.hidden > target.config.hidden_size:
        raise SystemExit(f"--hidden {shape.hidden} is more than the target's {target.config.hidden_size}")
    if shape.hidden % (2 * shape.heads) or shape.heads % shape.kv_heads:
        raise SystemExit(
            f"--hidden {shape.hidden} needs an even size for each of {shape.heads} heads, "
            f"which {shape.kv_heads} key and value heads divide"
        )


def _config(target: Target, shape: DraftShape) -> LlamaConfig:
    own = target.config
    return LlamaConfig(
        vocab_size=len(target.embedding),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=own.max_position_embeddings,
        rope_parameters=dict(own.rope_parameters),
        rms_norm_eps=own.rms_norm_eps,
        tie_word_embeddings=True,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id,
    )
