"""The embedding's rows, exactly, from each form of the table, in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from firelane.backends.cuda.device.shapes import ROW_BLOCK
from firelane.backends.cuda.kernels.embed import ESCAPES, embed
from firelane.backends.cuda.step.tables import TOKENS
from firelane.backends.cuda.weights.matrices import FP4, FP8, INT4, INT8
from tests.backends.cuda.matrices_harness import (
    coded_matrix,
    plain_matrix,
    random_bits,
    true_values,
    uncoded_matrix,
)
from tests.backends.cuda.quantised_harness import Form, quantised_matrix, random_part
from tests.backends.cuda.rows_harness import assert_untouched, limits, poisoned_tables, rows_of

FORMS = [
    Form(numbers=INT4, group_size=32),
    Form(numbers=INT4, group_size=32, scales=torch.int8, minima=True, units=True),
    Form(numbers=INT8, group_size=16, scales=torch.float32, minima=True),
    Form(numbers=FP8, group_size=768, scales=torch.float32),
    Form(numbers=FP4, group_size=16, scales=torch.bfloat16),
]
VOCAB = 150  # two blocks of rows and a part of one


def run(table, ids, *, max_tokens=None, scale=1.0):
    tables = poisoned_tables(limits())
    tables.counts[TOKENS] = len(ids)
    tables.token_ids[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
    out = rows_of(max_tokens or len(ids), table.k)
    embed(table, tables, out, scale=scale, max_tokens=len(out)).run()
    assert_untouched(out, len(ids), table.k)
    return out[: len(ids), : table.k].numpy()


def assert_same_bits(a, b):
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def rows_with_escapes(table):
    starts, where = table.escapes.starts.tolist(), table.escapes.where >> 24
    return [
        int(where[starts[b]]) + ROW_BLOCK * b for b in range(len(starts) - 1) if starts[b + 1] > starts[b]
    ]


@pytest.mark.parametrize("form", [plain_matrix, coded_matrix, uncoded_matrix])
@pytest.mark.parametrize("width", [128, 384, 1152])
def test_rows_are_the_original_ones(form, width):
    bits = random_bits(VOCAB, width, seed=width)
    table = form([bits])
    ids = [0, 63, 64, VOCAB - 1, 64, 91, *rows_with_escapes(table)]
    assert_same_bits(run(table, ids, max_tokens=len(ids) + 2), true_values(bits)[ids])


@pytest.mark.parametrize("form", [plain_matrix, coded_matrix])
def test_scaled_rows(form):
    """Escapes, too."""
    bits = random_bits(VOCAB, 128, seed=4)
    table = form([bits])
    ids = [5, *rows_with_escapes(table)]
    assert_same_bits(run(table, ids, scale=10.25), true_values(bits)[ids] * np.float32(10.25))


@pytest.mark.parametrize("form", [plain_matrix, coded_matrix])
def test_a_long_list_of_escapes_is_looked_through_to_its_end(form):
    bits = random_bits(320, 1152, seed=5, share=0.0)
    bits[3:8, ::16] = 0x0003
    bits[8, :] = 0x0001
    bits[8, 800:] = 0x8000
    table = form([bits])
    assert int(table.escapes.starts[1]) > 2 * ESCAPES
    assert_same_bits(run(table, [2, 3, 7, 8, 64]), true_values(bits)[[2, 3, 7, 8, 64]])


def test_a_float32_table_of_any_width():
    table = np.random.default_rng(3).standard_normal((VOCAB, 80)).astype(np.float32)
    assert_same_bits(run(uncoded_matrix([table]), [149, 7]), table[[149, 7]])


def test_a_width_that_is_no_multiple_of_a_tile():
    bits = random_bits(VOCAB, 104, seed=8)
    assert_same_bits(run(uncoded_matrix([bits]), [149, 7]), true_values(bits)[[149, 7]])


@pytest.mark.parametrize("form", [plain_matrix, coded_matrix])
def test_a_token_id_that_is_none_reads_nothing_beyond_the_table(form):
    bits = random_bits(VOCAB, 128, seed=6)
    rows = run(form([bits]), [-1, VOCAB, 2**31 - 1, -(2**31), 5])
    assert_same_bits(rows[4], true_values(bits)[5])
    assert np.isfinite(rows).all()


def test_no_tokens():
    run(plain_matrix([random_bits(VOCAB, 128)]), [], max_tokens=3)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_of_codes(form):
    """Escapes, too, whose codes were made zero."""
    part = random_part(form, VOCAB, 768, seed=3)
    table = quantised_matrix([part])
    ids = [0, 64, VOCAB - 1, *rows_with_escapes(table)]
    assert_same_bits(run(table, ids), true_values(part.bits)[ids])
