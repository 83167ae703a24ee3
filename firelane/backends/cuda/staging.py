"""Stager: writes a step's tables into pinned memory, where the step's first kernel reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.backends.contract import EMBED, StepInputs
from firelane.backends.cuda.shapes import ATTENTION_SPLIT
from firelane.backends.cuda.tables import (
    CHUNKS,
    FIRST_TILE,
    FIRST_TOKEN,
    FIRST_UNIT,
    LENGTH,
    LOGIT_ROWS,
    ROW_KIND,
    ROW_POSITION,
    ROW_SLOT,
    ROW_TOKEN,
    ROWS,
    SLOT,
    START,
    TILES,
    TOKENS,
    UNITS,
    StepTables,
)

I32 = NDArray[np.int32]


class Stager:
    """Writes only while no step is in flight."""

    def __init__(self, tables: StepTables, *, tile_tokens: int) -> None:
        self._counts: I32 = tables.staged.counts.numpy()
        self._chunks: I32 = tables.staged.chunks.numpy()
        self._rows: I32 = tables.staged.rows.numpy()
        self._max_units = tables.max_units
        self._tile_tokens = tile_tokens

    def write(self, inputs: StepInputs) -> bool:
        """Returns whether it is a decode step: all chunks are attended in units."""
        counts = self._counts
        counts[CHUNKS], counts[TOKENS], counts[ROWS] = inputs.num_chunks, inputs.num_tokens, inputs.num_rows
        counts[LOGIT_ROWS] = self._write_rows(inputs)
        counts[UNITS], counts[TILES] = self._write_chunks(inputs)
        return bool(counts[TILES] == 0)

    def _write_rows(self, inputs: StepInputs) -> int:
        """Returns how many rows need logits: those up to the last that is not of kind EMBED."""
        n = inputs.num_rows
        rows, kinds = self._rows[:n], inputs.row_kind[:n]
        rows[:, ROW_TOKEN], rows[:, ROW_SLOT] = inputs.row_token[:n], inputs.row_slot[:n]
        rows[:, ROW_POSITION], rows[:, ROW_KIND] = inputs.row_position[:n], kinds
        wanted = np.flatnonzero(kinds != EMBED)
        return int(wanted[-1]) + 1 if len(wanted) else 0

    def _write_chunks(self, inputs: StepInputs) -> tuple[int, int]:
        """Returns the number of units and of tiles."""
        n = inputs.num_chunks
        chunks, start, length = self._chunks[:n], inputs.chunk_start[:n], inputs.chunk_len[:n]
        chunks[:, SLOT], chunks[:, START], chunks[:, LENGTH] = inputs.chunk_slot[:n], start, length
        chunks[:, FIRST_TOKEN] = np.cumsum(length) - length
        units = np.where(length == 1, start // ATTENTION_SPLIT + 1, 0)
        if n and units.sum() > self._max_units:
            units[np.cumsum(units) > self._max_units] = 0  # too many at once: tiles give the same, slowly
        tiles = np.where(units == 0, -(-length // self._tile_tokens), 0)
        chunks[:, FIRST_UNIT] = np.where(units > 0, np.cumsum(units) - units, -1)
        chunks[:, FIRST_TILE] = np.where(tiles > 0, np.cumsum(tiles) - tiles, -1)
        return int(units.sum()), int(tiles.sum())
