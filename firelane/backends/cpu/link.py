"""The memory that the ranks of one machine share: a header (csrc/link.h), the inputs of the step that all of
them run, and the rows that they exchange."""

from __future__ import annotations

import mmap
import os

import numpy as np

from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.native import CHUNK_ARRAYS, LINK_COUNTS_AT, LINK_ENDED_AT, STEP_ARRAYS
from firelane.contract import StepInputs, StepLimits
from firelane.errors import MachineError
from firelane.program.ops import AllReduce, Gather
from firelane.program.values import Rows, Value

HEADER_BYTES = 4096
PAGE = mmap.PAGESIZE


class RankLink:
    """The shared memory of a group, as rank `rank` of `ranks` sees it. Whoever made it hands `fd` to the
    others and closes it; the mapping lives as long as this object."""

    def __init__(self, layout: Layout, rank: int, ranks: int, *, cores: int, fd: int = -1) -> None:
        """fd: of the group that another process has made with the same sizes; -1 makes one. cores: that the
        ranks have together; with fewer than ranks nobody waits busily. Raises MachineError where the sizes
        differ."""
        self.rank, self.ranks, self.spins = rank, ranks, 20000 if cores >= ranks else 0
        limits = layout.limits
        rows = {Rows.TOKEN: limits.max_num_batched_tokens, Rows.OUTPUT: limits.max_output_rows}
        sums = [
            layout.row_bytes(op.x) * rows[op.x.rows] for op in layout.meetings if isinstance(op, AllReduce)
        ]
        gathered = [
            layout.row_bytes(op.x) * rows[op.x.rows] for op in layout.meetings if isinstance(op, Gather)
        ]
        self.apart = _in_pages(max(sums, default=0))
        self._rows_at = HEADER_BYTES + _in_pages(_inputs_bytes(limits))
        self._gathered_at = self._rows_at + 2 * ranks * self.apart
        size = self._gathered_at + _in_pages(max(gathered, default=0))
        self.fd = fd if fd >= 0 else os.memfd_create("firelane-ranks", os.MFD_CLOEXEC)
        if fd < 0:
            os.ftruncate(self.fd, size)
        elif os.fstat(fd).st_size != size:
            raise MachineError(
                f"rank {rank}: memory of {os.fstat(fd).st_size} bytes is shared, {size} are needed"
            )
        self._memory = mmap.mmap(self.fd, size)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self._counts = np.frombuffer(self._memory, np.int32, 3, LINK_COUNTS_AT)
        self.inputs = _inputs(self._memory, limits)
        self._layout = layout

    @property
    def header(self) -> int:
        """Its address."""
        return self._bytes.ctypes.data

    @property
    def shared(self) -> int:
        """Address of the rows that are added up."""
        return self.header + self._rows_at

    @property
    def has_ended(self) -> bool:
        """Whether some rank is gone: what the others compute since is nothing."""
        return bool(self._bytes[LINK_ENDED_AT])

    def places(self) -> dict[Value, int]:
        """Addresses of the values that lie here."""
        found: dict[Value, int] = {}
        for op, number in self._layout.meetings.items():
            if isinstance(op, AllReduce):
                found[op.x] = self.shared + (number % 2 * self.ranks + self.rank) * self.apart
            elif isinstance(op, Gather):
                start = self.header + self._gathered_at
                found[op.x] = start + op.columns.start * self._layout.element_bytes(op.x.dtype)
                if op.out is not None:
                    found[op.out] = start
        return found

    def hand_out(self, inputs: StepInputs) -> None:
        """Copy the inputs of a step to where all ranks read them."""
        counts = inputs.num_chunks, inputs.num_tokens, inputs.num_rows
        self._counts[:] = counts
        self.inputs.num_chunks, self.inputs.num_tokens, self.inputs.num_rows = counts
        for name in STEP_ARRAYS:
            count = inputs.num_chunks if name in CHUNK_ARRAYS else inputs.num_rows
            getattr(self.inputs, name)[:count] = getattr(inputs, name)[:count]

    def close_fd(self) -> None:
        """Idempotent; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _in_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def _inputs_bytes(limits: StepLimits) -> int:
    chunks = len(CHUNK_ARRAYS)
    return 4 * (chunks * limits.max_num_seqs + (len(STEP_ARRAYS) - chunks) * limits.max_output_rows)


def _inputs(memory: mmap.mmap, limits: StepLimits) -> StepInputs:
    made, at = StepInputs.allocate(limits), HEADER_BYTES
    for name in STEP_ARRAYS:
        count = limits.max_num_seqs if name in CHUNK_ARRAYS else limits.max_output_rows
        setattr(made, name, np.frombuffer(memory, np.int32, count, at))
        at += 4 * count
    return made
