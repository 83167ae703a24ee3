"""The number of tokens that a verified step brings: drafts beside what the target draws greedily."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Mean tokens of a step, the drawn one included, and the share of right drafts by their place."""

    tokens_a_step: float
    by_place: tuple[float, ...]


def acceptance(right: Tensor, first: int) -> Acceptance:
    """Walk through sequences as the engine does, step by step.

    Args:
        right: bool [sequences, rows, places]; whether the draft made at a row is right at each place,
            given that those before it are.
        first: The row of the first step; rows before it belong to the prompt.
    """
    lengths = right.long().cumprod(-1).sum(-1)
    steps = tokens = 0
    for accepted in lengths.tolist():
        row = first
        while row < right.shape[1]:
            steps, tokens, row = steps + 1, tokens + 1 + accepted[row], row + 1 + accepted[row]
    if steps == 0:
        raise ValueError(f"sequences of {right.shape[1]} rows leave no step behind row {first}")
    by_place = right[:, first:].float().mean((0, 1))
    return Acceptance(tokens_a_step=tokens / steps, by_place=tuple(by_place.tolist()))


def runs(matches: Tensor, places: int) -> Tensor:
    """The matches of a model that reads tokens alone, as ``acceptance`` takes them.

    While drafts are right, such a model reads what the target wrote: its draft from a row is right at
    place k where its next token at row + k is. Args: ``matches`` bool [sequences, rows].
    """
    kept = matches.shape[1] - places + 1
    return torch.stack([matches[:, k : k + kept] for k in range(places)], dim=-1)
