"""StepRing: the inputs of the steps in flight, in memory that the ranks of one machine share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from firelane.contract import StepInputs, StepLimits

COUNTS = ("num_chunks", "num_tokens", "num_rows")
NOT_SHARED = ("features",)
"""Programs that read some have no other ranks (parallel.ranks)."""
ARRAYS = tuple(field.name for field in fields(StepInputs) if field.name not in COUNTS + NOT_SHARED)
CHUNK_ARRAYS = tuple(name for name in ARRAYS if name.startswith("chunk"))
ROW_ARRAYS = ARRAYS[len(CHUNK_ARRAYS) :]


def step_bytes(limits: StepLimits) -> int:
    """Bytes of the arrays of one step."""
    return 4 * sum(count for _, count in _lengths(limits))


class StepRing:
    """Places for steps, which take turns: one rank writes, the others read what was written in turn."""

    def __init__(
        self, limits: StepLimits, memory: mmap.mmap, counts: NDArray[np.int32], *, at: int, apart: int
    ) -> None:
        """counts: of each place the numbers of COUNTS, int32 [places, 3 or more]. The arrays of the first
        place lie at byte `at` of the memory, those of the next ones `apart` bytes behind each other."""
        self._counts = counts
        self.inputs = [_over(memory, limits, at + place * apart) for place in range(len(counts))]
        self._chunks, self._rows = (
            [[(name, getattr(inputs, name)) for name in names] for inputs in self.inputs]
            for names in (CHUNK_ARRAYS, ROW_ARRAYS)
        )
        self._written = self._read = 0

    def write(self, inputs: StepInputs) -> None:
        """Copy the inputs of the next step; fewer steps are in flight than there are places."""
        place = self._written % len(self.inputs)
        self._written += 1
        chunks, rows = inputs.num_chunks, inputs.num_rows
        self._counts[place, :3] = chunks, inputs.num_tokens, rows
        for name, shared in self._chunks[place]:
            shared[:chunks] = getattr(inputs, name)[:chunks]
        for name, shared in self._rows[place]:
            shared[:rows] = getattr(inputs, name)[:rows]

    def read(self) -> StepInputs:
        """The inputs of the next step that was written; valid until it has ended."""
        place = self._read % len(self.inputs)
        self._read += 1
        found = self.inputs[place]
        found.num_chunks, found.num_tokens, found.num_rows = self._counts[place, :3].tolist()
        return found


def shared_ring(fd: int, limits: StepLimits, places: int) -> StepRing:
    """The ring that is all of the memory `fd`, which is made large enough. Others with the same sizes share
    it; the mapping lives as long as the ring."""
    each, counts_bytes = step_bytes(limits), 16 * places
    size = counts_bytes + each * places
    os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    counts = np.ndarray((places, 4), np.int32, memory)
    return StepRing(limits, memory, counts, at=counts_bytes, apart=each)


def _lengths(limits: StepLimits) -> Iterator[tuple[str, int]]:
    for name in ARRAYS:
        yield name, limits.max_num_seqs if name in CHUNK_ARRAYS else limits.max_output_rows


def _over(memory: mmap.mmap, limits: StepLimits, at: int) -> StepInputs:
    """Inputs whose arrays lie in the memory, one behind the other."""
    made = StepInputs.allocate(limits)
    for name, count in _lengths(limits):
        setattr(made, name, np.frombuffer(memory, np.int32, count, at))
        at += 4 * count
    return made
