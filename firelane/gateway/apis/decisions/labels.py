"""Probabilities of labels, from log-probabilities of single tokens.

A label's log-probability is the sum of those of its tokens, each given the prompt and the label's tokens
before it. So labels that begin with the same token are told apart by what follows. The probabilities of a
question are those of its labels over their sum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firelane.errors import RequestError
from firelane.request_limits import MAX_LOGPROBS

Ids = tuple[int, ...]
Found = dict[Ids, dict[int, float]]
"""Log-probabilities of single tokens, by the label tokens before them."""


@dataclass(frozen=True, slots=True)
class Read:
    """A row of the model's output: behind a question's prompt and the tokens `behind`, the log-probabilities
    of the tokens `wanted`, at most MAX_LOGPROBS."""

    behind: Ids
    wanted: Ids


@dataclass(frozen=True, slots=True)
class Answer:
    """probabilities: of each label; their sum is 1. label_mass: what the model gives all labels together, 1
    where it would say nothing else."""

    probabilities: tuple[float, ...]
    label_mass: float


def reads_of(labels: Sequence[Ids]) -> list[Read]:
    """The reads that give each token of each label. Labels of one token need one read alone, up to
    MAX_LOGPROBS."""
    after: dict[Ids, dict[int, None]] = {}
    for label in labels:
        for i, token in enumerate(label):
            after.setdefault(label[:i], {})[token] = None
    return [
        Read(behind, tuple(tokens)[start : start + MAX_LOGPROBS])
        for behind, tokens in after.items()
        for start in range(0, len(tokens), MAX_LOGPROBS)
    ]


def check_apart(field: str, texts: Sequence[str], labels: Sequence[Ids]) -> None:
    """Raises RequestError where the tokenizer makes the same tokens of two labels, or one the start of
    another."""
    order = sorted(range(len(labels)), key=lambda i: labels[i])
    for one, other in itertools.pairwise(order):
        if labels[other][: len(labels[one])] == labels[one]:
            raise RequestError(
                f"`{field}`: this model's tokenizer does not tell the labels {texts[one]!r} and "
                f"{texts[other]!r} apart: give the question fewer options",
                param=field,
            )


def answer_of(labels: Sequence[Ids], found: Mapping[Ids, Mapping[int, float]]) -> Answer:
    """Labels that the model gives no probability at all are equally likely, with a label_mass of 0. Sums are
    rounded once, so that their order means nothing."""
    logs = [math.fsum(found[label[:i]][token] for i, token in enumerate(label)) for label in labels]
    top = max(one for one in (*logs, -math.inf) if not math.isnan(one))
    if not math.isfinite(top):
        return Answer((1 / len(labels),) * len(labels), 0.0)
    weights = [0.0 if math.isnan(one) else math.exp(one - top) for one in logs]
    total = math.fsum(weights)
    return Answer(tuple(one / total for one in weights), min(1.0, math.exp(top) * total))
