"""StepLink: the inputs of a step in host memory that the ranks of one machine share."""

from __future__ import annotations

import mmap
import os

import numpy as np

from firelane.contract import StepInputs, StepLimits

COUNTS = ("num_chunks", "num_tokens", "num_rows")


class StepLink:
    """As one rank sees it. Whoever makes it hands `fd` to the others and closes it; the mapping stays as long
    as the object."""

    def __init__(self, limits: StepLimits, fd: int | None = None) -> None:
        """fd: of the link that another rank has made with the same sizes; None makes one."""
        shapes = {n: len(a) for n, a in vars(StepInputs.allocate(limits)).items() if n not in COUNTS}
        size = 4 * (len(COUNTS) + sum(shapes.values()))
        self.fd = os.memfd_create("firelane-steps", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, size)
        words = np.frombuffer(mmap.mmap(self.fd, size), np.int32)
        self._counts, at = words[: len(COUNTS)], len(COUNTS)
        self._inputs = StepInputs.allocate(limits)
        for name, count in shapes.items():
            setattr(self._inputs, name, words[at : at + count])
            at += count

    def hand_out(self, inputs: StepInputs) -> None:
        """Copy the inputs of a step to where all ranks read them; only while none of them runs one."""
        self._counts[:] = [getattr(inputs, name) for name in COUNTS]
        for name, array in vars(self._inputs).items():
            if name not in COUNTS:
                count = inputs.num_chunks if name.startswith("chunk") else inputs.num_rows
                array[:count] = getattr(inputs, name)[:count]

    def receive(self) -> StepInputs:
        """Inputs that were handed out last; valid until the step has ended."""
        for name, count in zip(COUNTS, self._counts.tolist(), strict=True):
            setattr(self._inputs, name, count)
        return self._inputs

    def close_fd(self) -> None:
        """Idempotent; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
