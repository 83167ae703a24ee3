"""From the logits of a model with labels to scores and probabilities."""

from __future__ import annotations

import array
import math
from collections.abc import Callable

from firelane.errors import RequestError
from firelane.gateway.apis.embeddings.vectors import swapped
from firelane.telemetry.traces import RequestTimes
from firelane.text.embedding_files import EmbeddingFiles

Write = Callable[[list[float], int], bytes]


def check_pairs(files: EmbeddingFiles) -> None:
    """Raises RequestError for a model with labels that gives no single score."""
    if len(files.labels) > 1:
        raise RequestError(
            f"this model has {len(files.labels)} labels and gives no score: ask it at /classify",
            code="no_scores",
        )


def check_classes(files: EmbeddingFiles) -> None:
    """Raises RequestError for a model without labels."""
    if not files.labels:
        raise RequestError(
            "this model has no labels: /classify takes models whose architecture ends in "
            "ForSequenceClassification",
            code="no_labels",
        )


def probabilities(logits: array.array[float]) -> list[float]:
    """The share of each label, that of a single one by itself; computed in float64."""
    if len(logits) == 1:
        return [sigmoid(logits[0])]
    top = max(logits)
    shares = [math.exp(logit - top) for logit in logits]
    total = math.fsum(shares)
    return [share / total for share in shares]


def sigmoid(x: float) -> float:
    """In a form that does not overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


class PairScores:
    """A VectorAnswer of pairs that a model scores by itself. is_raw: logits as they are, else their sigmoids.
    write: makes the JSON of all scores and the number of tokens."""

    def __init__(self, count: int, *, is_raw: bool, write: Write) -> None:
        self._scores = [0.0] * count
        self._is_raw, self._write = is_raw, write

    def add(self, index: int, values: bytes) -> None:
        (logit,) = swapped(array.array("f", values))
        self._scores[index] = logit if self._is_raw else sigmoid(logit)

    def body(self, tokens: int, times: RequestTimes) -> bytes:  # noqa: ARG002
        return self._write(self._scores, tokens)
