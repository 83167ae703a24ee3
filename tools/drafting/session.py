"""A whole run: train, measure, write. The tools differ in what they train and how it drafts."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tools.drafting.acceptance import Acceptance, acceptance
from tools.drafting.arguments import Material
from tools.drafting.card import Run
from tools.drafting.export import write_directory
from tools.drafting.loop import Progress, batches, train

MEASURED_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafter:
    """The model that is trained, its loss on rows, and the drafts that are right, for ``acceptance``."""

    model: nn.Module
    loss_of: Callable[[Tensor], Tensor]
    right: Callable[[Tensor], Tensor]


def train_and_write(
    drafter: Drafter, material: Material, arguments: argparse.Namespace, fill: Callable[[Path, Run], None]
) -> None:
    """Train, and replace the output directory by what ``fill`` writes for the run."""
    device, plan = material.target.device, material.plan

    def report(now: Progress) -> None:
        _print(now, plan.steps, measure(drafter, material))

    rows = (batch.to(device) for batch in batches(material.text, material.written, plan))
    done = train(drafter.model, drafter.loss_of, rows, plan, report, arguments.every)
    measured = measure(drafter, material)
    _print(done, plan.steps, measured)
    run = Run.of(arguments, material, done, measured)
    write_directory(arguments.out, lambda made: fill(made, run))


@torch.no_grad()
def measure(drafter: Drafter, material: Material) -> dict[str, Acceptance]:
    """Acceptance behind the held-out prompts, by how the target drew."""
    drafter.model.eval()
    found: dict[str, Acceptance] = {}
    for name, written in material.held_out.items():
        parts = torch.from_numpy(written).to(material.target.device).split(MEASURED_AT_ONCE)
        # At the prompt's last row the target draws the first token, and drafts stand behind it.
        found[name] = acceptance(torch.cat([drafter.right(rows) for rows in parts]), material.prompt - 1)
    drafter.model.train()
    return found


def _print(now: Progress, steps: int, measured: dict[str, Acceptance]) -> None:
    """Print one line: progress, loss, acceptance."""
    brought = ", ".join(f"{name} {found.tokens_a_step:.3f}" for name, found in measured.items())
    print(
        f"{time.strftime('%H:%M:%S')} step {now.step}/{steps} loss {now.loss:.4f} tokens a step: {brought}",
        flush=True,
    )
