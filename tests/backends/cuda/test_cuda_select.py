"""Output rows from token rows, and hidden states for the host, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from firelane.backends.cuda.kernels.rows.cast import select_rows
from firelane.backends.cuda.kernels.rows.store_hidden import store_hidden
from firelane.backends.cuda.step.tables import PARITY, ROW_KIND, ROW_TOKEN, ROWS
from firelane.contract import EMBED, SAMPLE, SCORE
from tests.backends.cuda.host_device import poison
from tests.backends.cuda.rows_harness import (
    assert_untouched,
    filled,
    limits,
    poisoned_tables,
    random_split_k,
    rows_of,
    sum_of,
)


def tables_of(tokens=(), kinds=()):
    tables = poisoned_tables(limits())
    tables.counts[ROWS], tables.counts[PARITY] = max(len(tokens), len(kinds)), 1
    tables.rows[: len(tokens), ROW_TOKEN] = torch.tensor(tokens, dtype=torch.int32)
    tables.rows[: len(kinds), ROW_KIND] = torch.tensor(kinds, dtype=torch.int32)
    return tables


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("width", [80, 1100])
def test_rows_are_picked(width, dtype):
    x = filled(np.random.default_rng(1).standard_normal((9, width)).astype(np.float32), 16, dtype)
    chosen, out = [8, 0, 3, 3], rows_of(6, width, dtype)
    select_rows(x, tables_of(chosen), out, width=width, max_rows=6).run()
    assert torch.equal(out[:4, :width], x[chosen, :width])
    assert_untouched(out, 4, width)


def test_rows_of_a_split_k_value_are_added_up():
    split_k = random_split_k(np.random.default_rng(2), 7, 104, max_rows=8)
    split_k = replace(split_k, out=None)
    chosen, out = [6, 2], rows_of(2, 104)
    select_rows(split_k, tables_of(chosen), out, width=104, max_rows=2).run()
    np.testing.assert_array_equal(out[:, :104].numpy(), sum_of(split_k, 7)[chosen])


def test_a_split_k_value_that_others_read_is_refused():
    split_k = random_split_k(np.random.default_rng(3), 2, 80, max_rows=2)
    with pytest.raises(AssertionError, match="the other rows"):
        select_rows(split_k, tables_of([1]), rows_of(2, 80), width=80, max_rows=2)


def test_no_rows_leave_everything_as_it_was():
    out, hidden = rows_of(3, 80), poison(torch.empty(2, 3, 80))
    select_rows(rows_of(4, 80), tables_of(), out, width=80, max_rows=3).run()
    store_hidden(rows_of(4, 80), tables_of(), hidden, width=80, max_rows=3).run()
    assert_untouched(out, 0, 0)
    assert hidden.isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("width", [80, 1100])
def test_hidden_states_are_given_of_rows_that_are_embedded(width, dtype):
    x = filled(np.random.default_rng(4).standard_normal((5, width)).astype(np.float32), 8, dtype)
    hidden = poison(torch.empty(2, 16, width))
    kinds = [EMBED, SAMPLE, EMBED, SCORE, EMBED]
    store_hidden(x, tables_of(kinds=kinds), hidden, width=width, max_rows=8).run()
    given = [r for r, kind in enumerate(kinds) if kind == EMBED]
    assert torch.equal(hidden[1, given], x[given, :width].float())
    others = [r for r in range(16) if r not in given]
    assert hidden[1, others].isnan().all()
    assert hidden[0].isnan().all()
