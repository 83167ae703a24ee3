"""Steps on their way from the engine's host to the others: inputs, and of the slots' state what a step reads
there. Integers of 32 bits, one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cpu.native import CHUNK_ARRAYS, STEP_ARRAYS
from firelane.contract import SlotState, StepInputs, StepLimits

HEADER_INTS = 4
"""Chunks, tokens, rows, and integers of block tables."""
Ints = NDArray[np.int32]


class StepEncoder:
    """Remembers which pages the other hosts have in their block tables: only changes are sent."""

    def __init__(self, limits: StepLimits, state: SlotState) -> None:
        self._limits, self._state = limits, state
        self._sent = np.full_like(state.block_tables, -1)

    def encode(self, inputs: StepInputs) -> bytes:
        """A step that is handed out now: the tokens that it reads are there."""
        chunks = inputs.num_chunks
        slots, starts, lengths = (
            array[:chunks].tolist() for array in (inputs.chunk_slot, inputs.chunk_start, inputs.chunk_len)
        )
        tokens, tables = self._state.tokens, list[Ints]()
        rows = [tokens[s, b : b + n] for s, b, n in zip(slots, starts, lengths, strict=True)]
        for slot, start, length in zip(slots, starts, lengths, strict=True):
            tables += self._changes(slot, -(-(start + length) // self._limits.block_size))
        arrays = [getattr(inputs, name)[: _count(name, chunks, inputs.num_rows)] for name in STEP_ARRAYS]
        size = sum(len(part) for part in tables)
        header = np.array([chunks, inputs.num_tokens, inputs.num_rows, size], np.int32)
        return np.concatenate([header, *arrays, *rows, *tables]).tobytes()

    def _changes(self, slot: int, pages: int) -> list[Ints]:
        """Slot, first page and number of pages that changed, then those of each group."""
        mine, theirs = self._state.block_tables[:, slot, :pages], self._sent[:, slot, :pages]
        changed = np.flatnonzero((mine != theirs).any(axis=0))
        if not len(changed):
            return []
        first, end = int(changed[0]), int(changed[-1]) + 1
        theirs[:, first:end] = mine[:, first:end]
        return [np.array([slot, first, end - first], np.int32), mine[:, first:end].ravel()]


def body_bytes(header: bytes | bytearray) -> int:
    """All that follows a header of HEADER_INTS integers."""
    chunks, tokens, rows, tables = np.frombuffer(header, np.int32).tolist()
    return 4 * (sum(_count(name, chunks, rows) for name in STEP_ARRAYS) + tokens + tables)


def decode(header: bytes | bytearray, body: bytes | bytearray, inputs: StepInputs, state: SlotState) -> None:
    """Into `inputs`, and into the state that the step's chunks read."""
    chunks, tokens, rows, _ = np.frombuffer(header, np.int32).tolist()
    inputs.num_chunks, inputs.num_tokens, inputs.num_rows = chunks, tokens, rows
    numbers, at = np.frombuffer(body, np.int32), 0
    for name in STEP_ARRAYS:
        count = _count(name, chunks, rows)
        getattr(inputs, name)[:count] = numbers[at : at + count]
        at += count
    for chunk in range(chunks):
        slot, start, length = (
            int(a[chunk]) for a in (inputs.chunk_slot, inputs.chunk_start, inputs.chunk_len)
        )
        state.tokens[slot, start : start + length] = numbers[at : at + length]
        at += length
    groups = len(state.block_tables)
    while at < len(numbers):
        slot, first, count = numbers[at : at + 3].tolist()
        at += 3
        pages = numbers[at : at + groups * count].reshape(groups, count)
        state.block_tables[:, slot, first : first + count] = pages
        at += groups * count


def _count(name: str, chunks: int, rows: int) -> int:
    return chunks if name in CHUNK_ARRAYS else rows
