"""The model and its training loop: resumable, and the same for the same seed and step count."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from tools.embedded.batches import Stream, training_batch, validation_batches
from tools.embedded.corpus import BOS_ID, EOS_ID, PAD_ID
from tools.embedded.tokenizer import VOCABULARY_SIZE

CONTEXT = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that decides the weights, besides the data."""

    steps: int
    seed: int = 7
    tokens_per_step: int = 8192
    learning_rate: float = 4e-3
    warmup_steps: int = 60
    final_fraction: float = 0.03
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    muon: bool = True
    compiled: bool = True

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to a small fraction."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.learning_rate * (self.final_fraction + (1 - self.final_fraction) * cosine)


def build_model(seed: int) -> LlamaForCausalLM:
    """A Llama of about 5.5 million parameters with fresh weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def loss_of(model: LlamaForCausalLM, rows: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss in nats, under bf16 autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=rows, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[:, :-1])
    return cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


@torch.no_grad()
def validation_loss(model: LlamaForCausalLM, stream: Stream, rows: int = 64, length: int = 512) -> float:
    """Mean loss over windows that are the same at every call."""
    batches = validation_batches(stream, rows, length)
    weighted = [loss_of(model, batch).item() * len(batch) for batch in batches]
    return sum(weighted) / sum(len(batch) for batch in batches)


def planned_steps(checkpoint: Path) -> int | None:
    """The length of the run that wrote this checkpoint, where there is one."""
    if not checkpoint.exists():
        return None
    return torch.load(checkpoint, weights_only=True)["recipe"]["steps"]


class Trainer:
    """Owns the model, its optimizers and its checkpoint file."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        recipe: Recipe,
        streams: tuple[Stream, ...],
        checkpoint: Path,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.step = 0
        self.cpu_seconds = 0.0
        self.recent_loss = math.nan
        self._streams = streams
        self._checkpoint = checkpoint
        self._optimizers = _optimizers(model, recipe)
        self._loss = torch.compile(loss_of, dynamic=False) if recipe.compiled else loss_of

    def run(self, until: int, report: Callable[[Trainer], None], every: int) -> None:
        """Train up to step ``until``; save and report each ``every`` steps and at the end."""
        while self.step < until:
            began = time.process_time()
            loss = self._one_step()
            self.cpu_seconds += time.process_time() - began
            known = self.recent_loss == self.recent_loss
            self.recent_loss = 0.98 * self.recent_loss + 0.02 * loss if known else loss
            self.step += 1
            if self.step % every == 0 or self.step == until:
                self.save()
                report(self)

    def _one_step(self) -> float:
        recipe = self.recipe
        rows = training_batch(self._streams, recipe.tokens_per_step, recipe.seed, self.step)
        loss = self._loss(self.model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_norm)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate(self.step) * group["rate_factor"]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def save(self) -> None:
        """Write the checkpoint in one rename, so that a reader never sees half of it."""
        state = {
            "recipe": asdict(self.recipe),
            "step": self.step,
            "cpu_seconds": self.cpu_seconds,
            "recent_loss": self.recent_loss,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        partial = self._checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._checkpoint)

    def resume(self) -> bool:
        """Continue from the checkpoint, where there is one of the same recipe."""
        if not self._checkpoint.exists():
            return False
        state = torch.load(self._checkpoint, weights_only=True)
        if state["recipe"] != asdict(self.recipe):
            raise SystemExit(f"{self._checkpoint} was made by another recipe: {state['recipe']}")
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step = state["step"]
        self.cpu_seconds = state["cpu_seconds"]
        self.recent_loss = state["recent_loss"]
        return True


def _optimizers(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices where asked, AdamW for all the rest."""
    layer_ids = {id(p) for p in model.model.layers.parameters() if p.ndim == 2}
    matrices = [p for p in model.parameters() if id(p) in layer_ids]
    embeddings = [p for p in model.parameters() if p.ndim == 2 and id(p) not in layer_ids]
    norms = [p for p in model.parameters() if p.ndim == 1]
    groups: list[dict[str, object]] = [
        {"params": embeddings, "weight_decay": recipe.weight_decay, "rate_factor": 1.0},
        {"params": norms, "weight_decay": 0.0, "rate_factor": 1.0},
    ]
    if not recipe.muon:
        groups[0]["params"] = embeddings + matrices
        return [torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=True)]
    adamw = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=True)
    muon = torch.optim.Muon(
        [{"params": matrices, "rate_factor": 1.0}],
        lr=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return [adamw, muon]
