"""Stager: writes a step's tables into pinned memory, where the step's first kernel reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cuda.device.shapes import ATTENTION_SPLIT
from firelane.backends.cuda.step.tables import (
    CHUNKS,
    DRAFTED,
    FIRST_KV_SPLIT,
    FIRST_TILE,
    FIRST_TOKEN,
    KV_SPLITS,
    LENGTH,
    LOGIT_ROWS,
    PARITY,
    ROW_KIND,
    ROW_MASK,
    ROW_POSITION,
    ROW_SLOT,
    ROW_TOKEN,
    ROWS,
    SLOT,
    START,
    STATE_FROM,
    STATE_SAVE,
    STATE_SPARE,
    TILES,
    TOKENS,
    StepTables,
)
from firelane.contract import EMBED, StepInputs

I32 = NDArray[np.int32]


class Stager:
    """Writes one of the staged sets, and only while no step in flight has it."""

    def __init__(self, tables: StepTables, *, tile_tokens: int, parity: int = 0) -> None:
        staged = tables.staged[parity]
        self._counts: I32 = staged.counts.numpy()
        self._chunks: I32 = staged.chunks.numpy()
        self._rows: I32 = staged.rows.numpy()
        self._counts[PARITY] = parity
        self._max_kv_splits = tables.max_kv_splits
        self._tile_tokens = tile_tokens
        self._count = np.arange(len(self._chunks), dtype=np.int32)

    def write(self, inputs: StepInputs) -> bool:
        """Returns whether it is a decode step: all chunks are attended in KV splits."""
        counts = self._counts
        counts[CHUNKS], counts[TOKENS], counts[ROWS] = inputs.num_chunks, inputs.num_tokens, inputs.num_rows
        counts[LOGIT_ROWS] = self._write_rows(inputs)
        kv_splits, tiles = self._write_chunks(inputs)
        counts[KV_SPLITS], counts[TILES] = kv_splits, tiles
        return tiles == 0

    def _write_rows(self, inputs: StepInputs) -> int:
        """Returns how many rows need logits: those up to the last that is not of kind EMBED."""
        n = inputs.num_rows
        rows, kinds = self._rows[:n], inputs.row_kind[:n]
        rows[:, ROW_TOKEN] = inputs.row_token[:n]
        rows[:, ROW_SLOT] = inputs.row_slot[:n]
        rows[:, ROW_POSITION] = inputs.row_position[:n]
        rows[:, ROW_KIND] = kinds
        rows[:, ROW_MASK] = inputs.row_slot[:n]
        drafted = np.flatnonzero(inputs.row_mask[:n])
        rows[drafted, ROW_MASK] = len(self._chunks) - 1 + inputs.row_mask[drafted]
        if not n or kinds[-1] != EMBED:
            return n
        wanted = np.flatnonzero(kinds != EMBED)
        return int(wanted[-1]) + 1 if len(wanted) else 0

    def _write_chunks(self, inputs: StepInputs) -> tuple[int, int]:
        """Returns the number of KV splits and of tiles."""
        n = inputs.num_chunks
        chunks, start, length = self._chunks[:n], inputs.chunk_start[:n], inputs.chunk_len[:n]
        chunks[:, SLOT] = inputs.chunk_slot[:n]
        chunks[:, START] = start
        chunks[:, LENGTH] = length
        chunks[:, STATE_FROM] = inputs.chunk_from[:n]
        chunks[:, STATE_SAVE] = inputs.chunk_save[:n]
        chunks[:, DRAFTED] = inputs.chunk_drafted[:n]
        chunks[:, STATE_SPARE] = inputs.chunk_spare[:n]
        if inputs.num_tokens == n > 0:
            ends = np.cumsum(start // ATTENTION_SPLIT + 1)
            if ends[-1] <= self._max_kv_splits:
                return self._write_decodes(chunks, ends), 0
        return self._write_mixed(chunks, start, length)

    def _write_decodes(self, chunks: I32, ends: NDArray[np.integer]) -> int:
        """Every chunk is one token, and there is room for all KV splits: the step that counts most."""
        chunks[:, FIRST_TOKEN] = self._count[: len(chunks)]
        chunks[:, FIRST_TILE] = -1
        chunks[0, FIRST_KV_SPLIT] = 0
        chunks[1:, FIRST_KV_SPLIT] = ends[:-1]
        return int(ends[-1])

    def _write_mixed(self, chunks: I32, start: I32, length: I32) -> tuple[int, int]:
        chunks[:, FIRST_TOKEN] = np.cumsum(length) - length
        kv_splits = np.where(length == 1, start // ATTENTION_SPLIT + 1, 0)
        if len(kv_splits) and kv_splits.sum() > self._max_kv_splits:
            kv_splits[np.cumsum(kv_splits) > self._max_kv_splits] = (
                0  # too many at once: tiles give the same, slowly
            )
        tiles = np.where(kv_splits == 0, -(-length // self._tile_tokens), 0)
        chunks[:, FIRST_KV_SPLIT] = np.where(kv_splits > 0, np.cumsum(kv_splits) - kv_splits, -1)
        chunks[:, FIRST_TILE] = np.where(tiles > 0, np.cumsum(tiles) - tiles, -1)
        return int(kv_splits.sum()), int(tiles.sum())
