"""Hidden states of requests that want an embedding instead of tokens.

Such a request runs through the engine as one that draws a single token: the scheduler knows no other. Its
output rows, the last one included, are EMBED rows. "mean" needs one at each position of the prompt: those
are planned as prompt log-probabilities are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.wire.frames import Pooling, Sampling


def pooling_sampling(pooling: Pooling) -> Sampling:
    """Sampling values that make the scheduler plan an output row wherever `pooling` looks."""
    return Sampling(temperature=0.0, max_tokens=1, prompt_logprobs=0 if pooling == "mean" else -1)


class Pool:
    """The mean of the hidden states that it is given, one position after the other: of all positions, or of
    the last one alone, which is then its own mean.

    The sum is float64 and grows position by position, so its bits do not depend on the prompt's chunks.
    """

    __slots__ = ("_count", "_sum")

    def __init__(self) -> None:
        self._sum: NDArray[np.float64] | None = None
        self._count = 0

    def add(self, hidden: NDArray[np.float32]) -> None:
        """hidden: [width], of the next position; copied."""
        if self._sum is None:
            self._sum = hidden.astype(np.float64)
        else:
            self._sum += hidden
        self._count += 1

    def values(self) -> bytes:
        """The pooled state: little-endian float32 [width]."""
        assert self._sum is not None, "nothing to pool"
        return (self._sum / self._count).astype("<f4").tobytes()
