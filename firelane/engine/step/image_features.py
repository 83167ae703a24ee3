"""ImageFeatures: places of tokens and rows of images, written for the steps that compute them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.contract import StepInputs
from firelane.engine.sequences.sequence_images import SequenceImages
from firelane.engine.step.plan import StepPlan
from firelane.program.ops.merge_rows import IMAGE, PLACE_WIDTH, PLACED, PLAIN

F32 = NDArray[np.float32]


class ImageFeatures:
    """Knows the slots whose sequences have images. A step without any costs a look at its chunks."""

    def __init__(self) -> None:
        self._slots: dict[int, SequenceImages] = {}
        self._marked: set[int] = set()
        """Sets of inputs, by id, of which some row is marked."""

    def write(self, plan: StepPlan, inputs: StepInputs) -> None:
        """Mark the rows of `inputs`, which are filled from `plan`."""
        for chunk in plan.chunks:
            images = chunk.sequence.images
            if images is not None:
                self._slots[chunk.slot] = images
            elif self._slots:
                self._slots.pop(chunk.slot, None)
        if id(inputs) in self._marked:
            inputs.features[:, 0] = PLAIN
            self._marked.remove(id(inputs))
        if self._slots:
            self._mark(inputs)

    def _mark(self, inputs: StepInputs) -> None:
        row = 0
        for index in range(inputs.num_chunks):
            length = int(inputs.chunk_len[index])
            images = self._slots.get(int(inputs.chunk_slot[index]))
            if images is not None:
                start = int(inputs.chunk_start[index])
                self._marked.add(id(inputs))
                _write(images, start, inputs.features[row : row + length])
            row += length


def _write(images: SequenceImages, start: int, rows: F32) -> None:
    """rows: of the tokens from `start` on. Those before the first image are plain."""
    stop = start + len(rows)
    rows[max(0, images.places.first - start) :, 0] = PLACED
    rows[:, 1:PLACE_WIDTH] = images.places.of(start, stop)
    for span, known in zip(images.spans, images.rows, strict=True):
        first, last = max(span.start, start), min(span.stop, stop)
        if first < last:
            assert known is not None, "a sequence runs before its images are encoded"
            part = rows[first - start : last - start]
            part[:, 0] = IMAGE
            part[:, PLACE_WIDTH:] = known[first - span.start : last - span.start]
