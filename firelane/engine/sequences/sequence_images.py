"""The images of one sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from firelane.engine.sequences.places import ImageSpan, Places

F32 = NDArray[np.float32]


class SequenceImages:
    """Places and rows of the images, which live as long as the sequence: it may have to compute its prompt
    anew."""

    def __init__(self, spans: Sequence[ImageSpan]) -> None:
        """spans: in order, one at least."""
        self.spans, self.places = spans, Places(spans)
        self.rows: list[F32 | None] = [None] * len(spans)
        """float32 [span.length, row width] of each; None: not encoded yet."""

    @property
    def are_known(self) -> bool:
        """Whether all are encoded."""
        return all(rows is not None for rows in self.rows)
