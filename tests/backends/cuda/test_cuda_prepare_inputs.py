"""The step's first kernel: a step's tables from what the host staged, in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from firelane.backends.cuda.device.pinned_state import PinnedState
from firelane.backends.cuda.device.shapes import ATTENTION_SPLIT
from firelane.backends.cuda.kernels.rows.prepare_inputs import PAIRS, WORDS, prepare_inputs
from firelane.backends.cuda.step import tables as t
from firelane.backends.cuda.step.staging import Stager
from firelane.contract import CAUSAL, Chunk, StepInputs, Window, kept_from
from tests.backends.cuda.host_device import HostDevice, poison
from tests.backends.cuda.rows_harness import TILE_TOKENS, assert_untouched, limits, poisoned_tables

PARITY = 1
GARBAGE = 0x7F7F7F7F


def run(sizes, chunks, rows=(), *, max_chunks=None, max_rows=None):
    """chunks: (slot, start, length); rows: four numbers each. Returns the tables and the state."""
    tables, state = poisoned_tables(sizes), random_state(sizes)
    inputs = StepInputs.allocate(sizes)
    for i, chunk in enumerate(chunks):
        inputs.chunk_slot[i], inputs.chunk_start[i], inputs.chunk_len[i] = chunk
    for i, row in enumerate(rows):
        inputs.row_token[i], inputs.row_slot[i], inputs.row_position[i], inputs.row_kind[i] = row
    inputs.num_chunks, inputs.num_rows = len(chunks), len(rows)
    inputs.num_tokens = sum(length for _, _, length in chunks)
    poison(tables.staged[PARITY].chunks)
    poison(tables.staged[PARITY].rows)
    Stager(tables, tile_tokens=TILE_TOKENS, parity=PARITY).write(inputs)
    prepare_inputs(
        tables,
        state,
        parity=PARITY,
        block_size=sizes.block_size,
        tile_tokens=TILE_TOKENS,
        max_chunks=max_chunks or sizes.max_num_seqs,
        max_rows=max_rows or sizes.max_output_rows,
    ).run()
    return tables, state


def random_state(sizes):
    state = PinnedState.allocate(sizes, 100, HostDevice())
    rng = np.random.default_rng(1)
    for tensor in (state.tokens, state.block_tables):
        tensor.copy_(torch.from_numpy(rng.integers(0, 1 << 30, tensor.shape, dtype=np.int32)))
    return state


def check(tables, state, sizes, chunks, rows=()):
    """Against a plain reading of StepTables' description, and nothing else was written."""
    positions = [range(start, start + length) for _, start, length in chunks]
    tokens = sum(len(p) for p in positions)
    want_ids = [
        state.tokens[slot, p].item() for (slot, _, _), ps in zip(chunks, positions, strict=True) for p in ps
    ]
    assert tables.token_ids[:tokens].tolist() == want_ids
    assert tables.positions[:tokens].tolist() == [p for ps in positions for p in ps]
    assert tables.token_chunk[:tokens].tolist() == [i for i, ps in enumerate(positions) for _ in ps]
    for column in (tables.token_ids, tables.positions, tables.token_chunk):
        assert_untouched(column[:, None], tokens, 1)
    for i, (slot, start, length) in enumerate(chunks):
        needed = -(-(start + length) // sizes.block_size)
        for group, span in enumerate(sizes.spans):
            kept = kept_from(span, start) // sizes.block_size
            mine, slots_own = tables.block_tables[group, i], state.block_tables[group, slot]
            assert torch.equal(mine[kept:needed], slots_own[kept:needed])
            assert (mine[:kept] == GARBAGE).all()
            assert (mine[needed:] == GARBAGE).all()
    assert (tables.block_tables[:, len(chunks) :] == GARBAGE).all()
    kv_splits, tiles = want_pairs(tables.staged[PARITY].chunks[: len(chunks)].tolist())
    assert tables.kv_splits[: len(kv_splits)].tolist() == kv_splits
    assert tables.tiles[: len(tiles)].tolist() == tiles
    assert_untouched(tables.kv_splits, len(kv_splits), 2)
    assert_untouched(tables.tiles, len(tiles), 2)
    assert torch.equal(tables.counts, tables.staged[PARITY].counts)
    assert torch.equal(tables.chunks, tables.staged[PARITY].chunks)  # poison behind the last one in both
    assert tables.rows[: len(rows)].tolist() == [[*row, row[t.ROW_SLOT]] for row in rows]
    assert_untouched(tables.rows, len(rows), t.ROW_COLUMNS)


def want_pairs(records):
    kv_splits, tiles = [], []
    for i, record in enumerate(records):
        context, length = record[t.START] + record[t.LENGTH], record[t.LENGTH]
        if record[t.FIRST_KV_SPLIT] >= 0:
            kv_splits += [[i, j] for j in range(-(-context // ATTENTION_SPLIT))]
        if record[t.FIRST_TILE] >= 0:
            tiles += [[i, j] for j in range(0, length, TILE_TOKENS)]
    return kv_splits, tiles


STEPS = {
    "decode": [(3, 0, 1), (1, 255, 1), (2, 256, 1), (7, 299, 1)],
    "prompt": [(5, 0, 37)],
    "mixed": [(0, 17, 16), (6, 280, 1), (4, 0, 33), (2, 15, 2), (1, 31, 1)],
}


GROUPS = {"causal": (CAUSAL,), "mixed": (Window(20), CAUSAL, Chunk(48), Window(130), Chunk(256))}


@pytest.mark.parametrize("chunks", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("spans", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("block_size", [16, 64, 128])
def test_tables_of_a_step(chunks, block_size, spans):
    sizes = limits(block_size=block_size, spans=spans)
    rows = [(9, slot, start, slot % 3) for slot, start, _ in chunks]
    check(*run(sizes, chunks, rows), sizes, chunks, rows)


def test_a_long_chunk_and_a_long_context_take_several_turns():
    sizes = limits(
        max_num_batched_tokens=4 * WORDS, max_model_len=ATTENTION_SPLIT * (PAIRS + 9), block_size=16
    )
    chunks = [(2, 16 * WORDS + 600, 2 * WORDS + 70), (0, sizes.max_model_len - 1, 1), (1, 0, 1)]
    check(*run(sizes, chunks), sizes, chunks)


def test_more_rows_than_one_program_copies():
    sizes = limits(max_output_rows=WORDS // 4 + 30)
    rows = [(r, r % 8, r + 5, 1) for r in range(WORDS // 4 + 20)]
    check(*run(sizes, [(1, 0, 3)], rows), sizes, [(1, 0, 3)], rows)


def test_a_bucket_smaller_than_the_limits():
    sizes, chunks, rows = limits(), [(4, 20, 1), (3, 5, 1)], [(0, 4, 20, 0)]
    check(*run(sizes, chunks, rows, max_chunks=2, max_rows=1), sizes, chunks, rows)


def test_an_empty_step():
    sizes = limits()
    check(*run(sizes, []), sizes, [])
