"""StepTables: what a step is about, on the host (pinned, read by the device in place) and on the device.

The host writes one of two `Staged` before a step, by turns (PARITY), so that it may write the next while
one is in flight; the step's first kernel (kernels/prepare_inputs.py) reads it, and the slots'
state, over the bus and lays everything out for the kernels behind it. All counts of a step are read on the
device, so that one captured graph serves every step of its bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.shapes import ATTENTION_SPLIT, ATTENTION_TILE, round_up
from firelane.contract import KEY_TILE, Bidirectional, Causal, Chunk, Span, StepLimits, Window
from firelane.errors import UnsupportedModelError

# Indices into `counts`.
CHUNKS, TOKENS, ROWS, LOGIT_ROWS, KV_SPLITS, TILES, PARITY = range(7)
NUM_COUNTS = 8
# Columns of `chunks`. FIRST_KV_SPLIT is -1 of a chunk that is attended in tiles of queries, FIRST_TILE -1
# of one that is attended in KV splits. STATE_FROM, STATE_SAVE, DRAFTED, STATE_SPARE: as StepInputs has them
# in chunk_from, chunk_save, chunk_drafted and chunk_spare. The columns behind are padding.
SLOT, START, LENGTH, FIRST_TOKEN, FIRST_KV_SPLIT, FIRST_TILE = range(6)
STATE_FROM, STATE_SAVE, DRAFTED, STATE_SPARE = range(6, 10)
CHUNK_COLUMNS = 16
# Columns of `rows`: as StepInputs.row_*; ROW_MASK is the row of SlotState.masks itself.
ROW_TOKEN, ROW_SLOT, ROW_POSITION, ROW_KIND, ROW_MASK = range(5)
ROW_COLUMNS = 5
MAX_KV_SPLITS = 8192
TABLE_ALIGNMENT = 4  # entries: so that the tables of every group begin at 16 bytes
MAX_IN_FLIGHT = 2


@dataclass(frozen=True, kw_only=True)
class Staged:
    """Pinned host memory, written by submit() and read by the device until that step has ended.

    counts: int32 [NUM_COUNTS]; chunks: int32 [max_num_seqs, CHUNK_COLUMNS]; rows: int32 [max_output_rows,
    ROW_COLUMNS].
    """

    counts: Tensor
    chunks: Tensor
    rows: Tensor

    @classmethod
    def allocate(cls, limits: StepLimits, device: Device) -> Staged:
        return cls(
            counts=device.pinned(NUM_COUNTS),
            chunks=device.pinned(limits.max_num_seqs, CHUNK_COLUMNS),
            rows=device.pinned(limits.max_output_rows, ROW_COLUMNS),
        )


@dataclass(frozen=True, kw_only=True)
class StepTables:
    """Device memory, written by the step's first kernel.

    counts, chunks, rows: as Staged
    token_ids, positions, token_chunk: int32 [max_num_batched_tokens], of each token row; token_chunk is its
                 chunk's index
    block_tables: int32 [cache groups, max_num_seqs, at least blocks_per_seq], by chunk (not by slot); an
                 entry whose page the span has left behind is not written
    spans:       int32 [cache groups], span_code of each; never changes
    kv_splits:   int32 [max_kv_splits, 2]: (chunk, split) of the chunks of one token; a split is
                 ATTENTION_SPLIT positions
    tiles:       int32 [max_tiles, 2]: (chunk, first token within the chunk) of the others, ATTENTION_TILE
    rows of queries each
    """

    staged: tuple[Staged, ...]
    counts: Tensor
    chunks: Tensor
    rows: Tensor
    token_ids: Tensor
    positions: Tensor
    token_chunk: Tensor
    block_tables: Tensor
    spans: Tensor
    kv_splits: Tensor
    tiles: Tensor

    @property
    def max_kv_splits(self) -> int:
        return self.kv_splits.shape[0]

    @classmethod
    def allocate(cls, limits: StepLimits, *, tile_tokens: int, device: Device) -> StepTables:
        """tile_tokens: tokens of one chunk that share a tile of queries."""
        chunks, tokens, rows = limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_output_rows
        splits = -(-limits.max_model_len // ATTENTION_SPLIT)
        return cls(
            staged=tuple(Staged.allocate(limits, device) for _ in range(MAX_IN_FLIGHT)),
            counts=device.zeros(NUM_COUNTS),
            chunks=device.zeros(chunks, CHUNK_COLUMNS),
            rows=device.zeros(rows, ROW_COLUMNS),
            token_ids=device.zeros(tokens),
            positions=device.zeros(tokens),
            token_chunk=device.zeros(tokens),
            block_tables=device.zeros(
                len(limits.spans), chunks, round_up(limits.blocks_per_seq, TABLE_ALIGNMENT)
            ),
            spans=device.zeros(len(limits.spans)).copy_(torch.tensor(list(map(span_code, limits.spans)))),
            kv_splits=device.zeros(min(MAX_KV_SPLITS, chunks * splits), 2),
            tiles=device.zeros(-(-tokens // tile_tokens) + chunks, 2),
        )


def span_code(span: Span) -> int:
    """A span as kernels know it: 0 causal, n a window of n, -n chunks of n (online_softmax.first_visible)."""
    match span:
        case Window(tokens):
            return tokens
        case Chunk(tokens):
            return -tokens
        case Causal():
            return 0
        case Bidirectional():
            raise UnsupportedModelError("encoders run on a CPU only: choose --backend cpu")


assert ATTENTION_SPLIT % ATTENTION_TILE == 0
assert ATTENTION_TILE == KEY_TILE
