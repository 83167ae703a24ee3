"""StepLink: the inputs of the steps in flight, in host memory that the ranks of one machine share."""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray

from firelane.contract import StepInputs, StepLimits

COUNTS = ("num_chunks", "num_tokens", "num_rows")


class StepLink:
    """As one rank sees it. Whoever makes it hands `fd` to the others and closes it; the mapping stays as long
    as the object."""

    def __init__(self, limits: StepLimits, fd: int | None = None, *, steps: int = 1) -> None:
        """fd: of the link that another rank has made with the same sizes; None makes one. steps: in flight
        at most."""
        words_each = _words(limits)
        size = 4 * words_each * steps
        self.fd = os.memfd_create("firelane-steps", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, size)
        words = np.frombuffer(mmap.mmap(self.fd, size), np.int32).reshape(steps, words_each)
        self._steps = [_Step(limits, part) for part in words]
        self._handed_out = self._received = 0

    def hand_out(self, inputs: StepInputs) -> None:
        """Copy the inputs of a step to where all ranks read them; only while fewer than `steps` are in
        flight."""
        self._steps[self._handed_out % len(self._steps)].write(inputs)
        self._handed_out += 1

    def receive(self) -> StepInputs:
        """Inputs of the next step that was handed out; valid until it has ended."""
        found = self._steps[self._received % len(self._steps)].read()
        self._received += 1
        return found

    def close_fd(self) -> None:
        """Idempotent; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _Step:
    """Place of one step: int32 `words`, the counts and then the arrays."""

    def __init__(self, limits: StepLimits, words: NDArray[np.int32]) -> None:
        self._counts, at = words[: len(COUNTS)], len(COUNTS)
        self._inputs = StepInputs.allocate(limits)
        for name, count in _arrays(limits).items():
            setattr(self._inputs, name, words[at : at + count])
            at += count

    def write(self, inputs: StepInputs) -> None:
        self._counts[:] = [getattr(inputs, name) for name in COUNTS]
        for name, array in vars(self._inputs).items():
            if name not in COUNTS:
                count = inputs.num_chunks if name.startswith("chunk") else inputs.num_rows
                array[:count] = getattr(inputs, name)[:count]

    def read(self) -> StepInputs:
        for name, count in zip(COUNTS, self._counts.tolist(), strict=True):
            setattr(self._inputs, name, count)
        return self._inputs


def _arrays(limits: StepLimits) -> dict[str, int]:
    """Lengths of the arrays of a step."""
    return {n: len(a) for n, a in vars(StepInputs.allocate(limits)).items() if n not in COUNTS}


def _words(limits: StepLimits) -> int:
    return len(COUNTS) + sum(_arrays(limits).values())
