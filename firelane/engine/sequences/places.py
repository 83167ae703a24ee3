"""Positions of a sequence with images: three numbers a token (Qwen2-VL, 2024).

Those of a text count on together. An image's rows have one time, and their rows and columns count from there;
text behind goes on behind the largest of them, and so has positions below its index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]


class ImageSpan(NamedTuple):
    """An image's rows in a prompt: `rows` * `columns` of them from index `start` on."""

    start: int
    rows: int
    columns: int

    @property
    def length(self) -> int:
        return self.rows * self.columns

    @property
    def stop(self) -> int:
        return self.start + self.length


class Places:
    """The positions of a sequence's tokens. `shift`: what is added to the index of a token behind the last
    image. first: index of the first image."""

    def __init__(self, spans: Sequence[ImageSpan]) -> None:
        """spans: in order, one at least."""
        self.first = spans[0].start
        known, shift = list[I32](), 0
        begin = self.first
        for span in spans:
            known.append(_line(begin, span.start, shift))
            at = span.start + shift
            row, column = np.divmod(np.arange(span.length, dtype=np.int32), np.int32(span.columns))
            known.append(np.stack([np.full_like(row, at), at + row, at + column], axis=1))
            begin, shift = span.stop, shift + max(span.rows, span.columns) - span.length
        self._known, self.shift = np.concatenate(known), shift

    def of(self, start: int, stop: int) -> I32:
        """int32 [stop - start, 3]: time, row and column of the tokens from `start` on."""
        end = self.first + len(self._known)
        parts = [_line(start, min(stop, self.first), 0)]
        parts.append(self._known[max(0, start - self.first) : max(0, stop - self.first)])
        parts.append(_line(max(start, end), stop, self.shift))
        return np.concatenate(parts)


def _line(start: int, stop: int, shift: int) -> I32:
    """Positions of text: all three alike."""
    return np.repeat(np.arange(start, max(start, stop), dtype=np.int32)[:, None] + shift, 3, axis=1)
