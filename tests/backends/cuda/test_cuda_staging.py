"""Buckets, and what the host writes before a step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.backends.cuda.device.shapes import ATTENTION_SPLIT, MIN_SEGMENT, segments
from firelane.backends.cuda.lowering.buckets import choose, make_buckets
from firelane.backends.cuda.step import tables as t
from firelane.backends.cuda.step.staging import Stager
from firelane.backends.cuda.step.tables import StepTables
from firelane.contract import EMBED, SAMPLE, SCORE, StepInputs, StepLimits
from tests.backends.cuda.host_device import HostDevice

TILE_TOKENS = 16


def limits(**changes: int) -> StepLimits:
    settings = {
        "max_num_seqs": 40,
        "max_num_batched_tokens": 600,
        "max_output_rows": 50,
        "max_model_len": 2000,
        "block_size": 64,
        "num_blocks": 100,
    }
    return StepLimits(**{**settings, **changes})


def stage(chunks, rows=(), *, masks=(), sizes=None, max_kv_splits=None):
    """chunks: (slot, start, length); rows: (token, slot, position, kind); masks: row_mask."""
    sizes = sizes or limits()
    tables = StepTables.allocate(sizes, tile_tokens=TILE_TOKENS, device=HostDevice())
    inputs = StepInputs.allocate(sizes)
    for i, chunk in enumerate(chunks):
        inputs.chunk_slot[i], inputs.chunk_start[i], inputs.chunk_len[i] = chunk
    for i, row in enumerate(rows):
        inputs.row_token[i], inputs.row_slot[i], inputs.row_position[i], inputs.row_kind[i] = row
    inputs.row_mask[: len(masks)] = masks
    inputs.num_chunks, inputs.num_rows = len(chunks), len(rows)
    inputs.num_tokens = sum(length for _, _, length in chunks)
    stager = Stager(tables, tile_tokens=TILE_TOKENS)
    if max_kv_splits:
        stager._max_kv_splits = max_kv_splits
    decode = stager.write(inputs)
    return decode, tables.staged[0].counts.tolist(), tables.staged[0].chunks.numpy()[: len(chunks)], tables


def test_a_decode_step_lists_all_its_kv_splits():
    decode, counts, chunks, _ = stage([(3, 0, 1), (1, 255, 1), (2, 256, 1), (0, 1023, 1)])
    assert decode
    assert counts[t.CHUNKS] == counts[t.TOKENS] == 4
    assert counts[t.KV_SPLITS] == 1 + 1 + 2 + 4
    assert counts[t.TILES] == 0
    assert chunks[:, t.FIRST_KV_SPLIT].tolist() == [0, 1, 2, 4]
    assert chunks[:, t.FIRST_TILE].tolist() == [-1] * 4
    assert chunks[:, t.FIRST_TOKEN].tolist() == [0, 1, 2, 3]


def test_a_mixed_step_has_tiles_for_the_longer_chunks():
    decode, counts, chunks, _ = stage([(3, 300, 1), (1, 0, 33), (2, 5, 16)])
    assert not decode
    assert (counts[t.KV_SPLITS], counts[t.TILES]) == (2, 4)
    assert chunks[:, t.FIRST_KV_SPLIT].tolist() == [0, -1, -1]
    assert chunks[:, t.FIRST_TILE].tolist() == [-1, 0, 3]
    assert chunks[:, t.FIRST_TOKEN].tolist() == [0, 1, 34]
    assert chunks[:, [t.SLOT, t.START, t.LENGTH]].tolist() == [[3, 300, 1], [1, 0, 33], [2, 5, 16]]


def test_rows_are_copied_and_those_with_logits_counted():
    rows = [(0, 3, 0, SAMPLE), (4, 1, 3, EMBED), (5, 1, 4, SCORE), (6, 2, 9, EMBED), (7, 2, 10, EMBED)]
    _, counts, _, tables = stage([(3, 0, 1), (1, 0, 8)], rows)
    assert (counts[t.ROWS], counts[t.LOGIT_ROWS]) == (5, 3)
    assert tables.staged[0].rows[:5].tolist() == [[*row, row[t.ROW_SLOT]] for row in rows]
    assert stage([(0, 0, 2)], [(1, 0, 1, EMBED)])[1][t.LOGIT_ROWS] == 0
    assert stage([(0, 0, 2)])[1][t.LOGIT_ROWS] == 0


def test_rows_behind_drafted_tokens_read_masks_of_their_own():
    rows = [(0, 3, 5, SAMPLE), (1, 3, 6, SAMPLE), (2, 3, 7, SAMPLE), (3, 1, 2, SAMPLE)]
    sizes = limits()
    tables = stage([(3, 5, 3), (1, 2, 1)], rows, masks=[0, 1, 4, 0], sizes=sizes)[3]
    slots = sizes.max_num_seqs
    assert tables.staged[0].rows[:4, t.ROW_MASK].tolist() == [3, slots, slots + 3, 1]


def test_what_has_no_room_among_the_kv_splits_is_attended_in_tiles():
    decode, counts, chunks, _ = stage([(0, 0, 1), (1, 600, 1), (2, 700, 1), (3, 1, 1)], max_kv_splits=4)
    assert not decode
    assert (counts[t.KV_SPLITS], counts[t.TILES]) == (4, 2)
    assert chunks[:, t.FIRST_KV_SPLIT].tolist() == [0, 1, -1, -1]
    assert chunks[:, t.FIRST_TILE].tolist() == [-1, -1, 0, 1]


@given(st.lists(st.tuples(st.integers(0, 1900), st.integers(1, 60)), min_size=1, max_size=10))
def test_kv_splits_and_tiles_fill_their_tables_without_a_gap(spans):
    chunks = [(slot, start, length) for slot, (start, length) in enumerate(spans)]
    decode, counts, staged, tables = stage(chunks)
    assert decode == all(length == 1 for _, _, length in chunks)
    kv_splits = tiles = 0
    for (_, start, length), row in zip(chunks, staged, strict=True):
        if length == 1:
            assert (row[t.FIRST_KV_SPLIT], row[t.FIRST_TILE]) == (kv_splits, -1)
            kv_splits += -(-(start + 1) // ATTENTION_SPLIT)
        else:
            assert (row[t.FIRST_KV_SPLIT], row[t.FIRST_TILE]) == (-1, tiles)
            tiles += -(-length // TILE_TOKENS)
    assert (counts[t.KV_SPLITS], counts[t.TILES]) == (kv_splits, tiles)
    assert kv_splits <= tables.kv_splits.shape[0]
    assert tiles <= tables.tiles.shape[0]


@given(st.integers(1, 700), st.integers(0, 9000))
def test_every_step_within_the_limits_has_a_bucket(seqs, more):
    sizes = limits(max_num_seqs=seqs, max_num_batched_tokens=seqs + more, max_output_rows=seqs)
    buckets = make_buckets(sizes)
    for decode, most in ((True, seqs), (False, seqs + more)):
        for tokens in {1, most // 2 + 1, most}:
            bucket = choose(buckets, tokens=tokens, decode=decode)
            assert bucket.decode == decode
            assert tokens <= bucket.tokens <= max(4 * tokens, 64)
            assert bucket.chunks >= min(tokens, seqs) or not decode
            assert bucket.rows <= sizes.max_output_rows
        with pytest.raises(AssertionError):
            choose(buckets, tokens=most + 1, decode=decode)


def test_buckets_are_few():
    assert len(make_buckets(limits(max_num_seqs=256, max_num_batched_tokens=2048))) <= 14


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((6144, 4096), 2),
        ((4096, 4096), 2),
        ((4096, 14336), 2),
        ((28672, 4096), 1),
        ((128256, 4096), 1),
        ((2048, 2048), 4),
        ((64, 8192), 8),
        ((72, 104), 1),
        ((896, 896), 1),
    ],
)
def test_segments_follow_from_the_shape(shape, count):
    assert segments(*shape) == count
    assert shape[1] // count >= min(MIN_SEGMENT, shape[1])
    assert np.log2(count) % 1 == 0
