"""The training loop: Muon for inner matrices, AdamW for the rest, a cosine over steps or minutes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tools.drafting.text import Text, Tokens

FORGET = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The length and the rates of a run; ``minutes`` of wall-clock time end it before ``steps`` do."""

    steps: int
    minutes: float = math.inf
    rows: int = 6
    length: int = 384
    written: float = 0.5
    learning_rate: float = 3e-3
    warmup_steps: int = 30
    final_fraction: float = 0.03
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    seed: int = 7

    def rate(self, step: int, done: float) -> float:
        """Linear warm-up, then a cosine of the share ``done`` of the run, down to a small fraction."""
        warm = min(1.0, (step + 1) / min(self.warmup_steps, 1 + self.steps // 10))
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.learning_rate * warm * (self.final_fraction + (1 - self.final_fraction) * cosine)


@dataclass(slots=True)
class Progress:
    """The progress of a run: steps made, seconds since it began, running mean of the loss."""

    step: int = 0
    seconds: float = 0.0
    loss: float = math.nan
    first_loss: float = math.nan

    def add(self, loss: float) -> None:
        """Count one more step with this loss."""
        if self.step == 0:
            self.loss = self.first_loss = loss
        self.loss = FORGET * self.loss + (1 - FORGET) * loss
        self.step += 1


def batches(text: Text, written: Tokens, plan: Plan) -> Iterator[Tensor]:
    """Rows int64 [rows, length] without end: a share of what the target wrote, the others from the text."""
    rng = np.random.default_rng(plan.seed + 1)
    share = plan.written if len(written) else 0.0
    while True:
        own = int(rng.binomial(plan.rows, share))
        rows = text.windows(rng, plan.rows - own, plan.length) if own < plan.rows else written[:0]
        picked = written[rng.integers(len(written), size=own)] if own else rows[:0]
        yield torch.from_numpy(np.concatenate((rows, picked)))


def train(
    model: nn.Module,
    loss_of: Callable[[Tensor], Tensor],
    rows: Iterator[Tensor],
    plan: Plan,
    report: Callable[[Progress], None],
    every: int,
) -> Progress:
    """Train ``model`` in place until the steps or the minutes of the plan are over; report now and then.

    Raises SystemExit where the loss is no number.
    """
    optimizers = _optimizers(model, plan)
    progress, began = Progress(), time.monotonic()
    while progress.step < plan.steps and progress.seconds < plan.minutes * 60:
        done = max(progress.step / plan.steps, progress.seconds / (plan.minutes * 60))
        loss = _step(model, loss_of(next(rows)), optimizers, plan, plan.rate(progress.step, done))
        if not math.isfinite(loss):
            raise SystemExit(f"the loss of step {progress.step} is {loss}: try a lower --learning-rate")
        progress.add(loss)
        progress.seconds = time.monotonic() - began
        if progress.step % every == 0:
            report(progress)
    return progress


def _step(
    model: nn.Module, loss: Tensor, optimizers: list[torch.optim.Optimizer], plan: Plan, rate: float
) -> float:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _optimizers(model: nn.Module, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for matrices inside layers; AdamW for norms and for rows of tokens, which Muon would even out."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    tokens = [p for name, p in named if p.ndim == 2 and ("embed_tokens" in name or "lm_head" in name)]
    taken = {id(p) for p in tokens}
    matrices = [p for _, p in named if p.ndim == 2 and id(p) not in taken]
    norms = [p for _, p in named if p.ndim != 2]
    groups: list[dict[str, object]] = [
        {"params": tokens, "weight_decay": plan.weight_decay, "rate_factor": 0.5},
        {"params": norms, "weight_decay": 0.0, "rate_factor": 1.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95))
    muon = torch.optim.Muon(
        [{"params": matrices, "rate_factor": 1.0}],
        lr=plan.learning_rate,
        weight_decay=plan.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return [adamw, muon]
