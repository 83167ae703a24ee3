"""Text that the target itself writes: a draft has to foresee that, rather than the text it was trained on."""

from __future__ import annotations

import hashlib
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch

from tools.drafting.target import Target, autocast
from tools.drafting.text import Text, Tokens, kept_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """The number of rows that the target continues, the tokens of their prompts, and the length of each.

    Every ``every``-th batch is drawn at the temperature, the others greedily; 0 is greedy, too.
    """

    rows: int
    prompt: int
    length: int
    temperature: float
    seed: int
    every: int = 2
    batch: int = 128


def continuations(target: Target, text: Text, asking: Asking, work: Path) -> Tokens:
    """Rows int64 [rows, length]: prompts from the text, continued by the target; kept below ``work``."""
    kept = work / f"continuations-{_name(target, text, asking)}.npy"
    return kept_rows(kept, lambda: _write(target, text, asking))


def _write(target: Target, text: Text, asking: Asking) -> Tokens:
    rng = np.random.default_rng(asking.seed)
    torch.manual_seed(asking.seed)
    made: list[Tokens] = []
    for index, start in enumerate(range(0, asking.rows, asking.batch)):
        prompts = text.windows(rng, min(asking.batch, asking.rows - start), asking.prompt)
        drawn = (index + 1) % asking.every == 0
        made.append(_continue(target, prompts, asking, asking.temperature if drawn else 0.0))
        print(f"{time.strftime('%H:%M:%S')} continued {start + len(prompts)} of {asking.rows}", flush=True)
    return np.concatenate(made)


@torch.no_grad()
def _continue(target: Target, prompts: Tokens, asking: Asking, temperature: float) -> Tokens:
    """The prompts with what the target writes behind them, past the end of a text, too."""
    ids = torch.from_numpy(prompts).to(target.device)
    drawing = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    with autocast(target.device):
        made = target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=asking.length - asking.prompt,
            eos_token_id=None,
            pad_token_id=0,
            **(drawing if temperature > 0 else {"do_sample": False}),
        )
    return made.cpu().numpy()


def _name(target: Target, text: Text, asking: Asking) -> str:
    """A name that says which model, text and settings the rows come from."""
    weights = b"".join(
        f"{path.name} {path.stat().st_size}\n".encode() for path in sorted(target.directory.glob("*"))
    )
    told = (str(target.directory.resolve()), text.prefix, astuple(asking))
    digest = hashlib.sha256(repr(told).encode() + weights + text.tokens.tobytes())
    return digest.hexdigest()[:16]
