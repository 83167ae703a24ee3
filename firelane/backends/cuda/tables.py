"""StepTables: what a step is about, on the host (pinned, read by the device in place) and on the device.

The host writes `Staged` before a step; the step's first kernel (kernels/begin.py) reads it, and the slots'
state, over the bus and lays everything out for the kernels behind it. All counts of a step are read on the
device, so that one captured graph serves every step of its bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from firelane.backends.contract import StepLimits
from firelane.backends.cuda.device import Device
from firelane.backends.cuda.shapes import ATTENTION_SPLIT, ATTENTION_TILE

# Indices into `counts`.
CHUNKS, TOKENS, ROWS, LOGIT_ROWS, UNITS, TILES = range(6)
NUM_COUNTS = 8
# Columns of `chunks`. FIRST_UNIT is -1 of a chunk that is attended in tiles, FIRST_TILE -1 of one in units.
SLOT, START, LENGTH, FIRST_TOKEN, FIRST_UNIT, FIRST_TILE = range(6)
CHUNK_COLUMNS = 8
# Columns of `rows`: as StepInputs.row_*.
ROW_TOKEN, ROW_SLOT, ROW_POSITION, ROW_KIND = range(4)
MAX_UNITS = 8192


@dataclass(frozen=True, kw_only=True)
class Staged:
    """Pinned host memory, written by submit().

    counts: int32 [NUM_COUNTS]; chunks: int32 [max_num_seqs, CHUNK_COLUMNS]; rows: int32 [max_output_rows, 4].
    """

    counts: Tensor
    chunks: Tensor
    rows: Tensor


@dataclass(frozen=True, kw_only=True)
class StepTables:
    """Device memory, written by the step's first kernel.

    counts, chunks, rows: as Staged
    token_ids, positions, token_chunk: int32 [max_num_batched_tokens], of each token row; token_chunk is its
                 chunk's index
    block_tables: int32 [max_num_seqs, blocks_per_seq], by chunk (not by slot)
    units:       int32 [max_units, 2]: (chunk, split) of the chunks of one token; a split is ATTENTION_SPLIT
                 positions
    tiles:       int32 [max_tiles, 2]: (chunk, first token within the chunk) of the others, ATTENTION_TILE
    rows of queries each
    """

    staged: Staged
    counts: Tensor
    chunks: Tensor
    rows: Tensor
    token_ids: Tensor
    positions: Tensor
    token_chunk: Tensor
    block_tables: Tensor
    units: Tensor
    tiles: Tensor

    @property
    def max_units(self) -> int:
        return self.units.shape[0]

    @classmethod
    def allocate(cls, limits: StepLimits, *, tile_tokens: int, device: Device) -> StepTables:
        """tile_tokens: tokens of one chunk that share a tile of queries."""
        chunks, tokens, rows = limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_output_rows
        splits = -(-limits.max_model_len // ATTENTION_SPLIT)
        return cls(
            staged=Staged(
                counts=device.pinned(NUM_COUNTS),
                chunks=device.pinned(chunks, CHUNK_COLUMNS),
                rows=device.pinned(rows, 4),
            ),
            counts=device.zeros(NUM_COUNTS),
            chunks=device.zeros(chunks, CHUNK_COLUMNS),
            rows=device.zeros(rows, 4),
            token_ids=device.zeros(tokens),
            positions=device.zeros(tokens),
            token_chunk=device.zeros(tokens),
            block_tables=device.zeros(chunks, limits.blocks_per_seq),
            units=device.zeros(min(MAX_UNITS, chunks * splits), 2),
            tiles=device.zeros(-(-tokens // tile_tokens) + chunks, 2),
        )


assert ATTENTION_SPLIT % ATTENTION_TILE == 0
