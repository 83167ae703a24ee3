"""The layout's rules, and what the CPU backend refuses before it loads anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from firelane.backends.cpu import load
from firelane.backends.cpu.codegen.layout import Layout
from firelane.engine_config import ExecutorConfig
from firelane.errors import UnsupportedModelError, UsageError
from firelane.program.ops import HeadShape
from firelane.program.values import DType
from tests.backends.cpu_harness import limits, small_spec
from tests.models.dense import dense_program

CONFIG = ExecutorConfig(max_num_seqs=4, max_num_batched_tokens=64, block_size=16, cache_dir=Path("/nowhere"))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"block_size": 24}, "--block-size 24"), ({"threads": 4096}, "--threads 4096: this machine has")],
)
def test_refused_before_loading(change: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(dense_program(small_spec()), Path("/nowhere"), replace(CONFIG, **change), lambda *_: None)


def test_heads_that_are_no_whole_vectors_are_refused() -> None:
    program = dense_program(small_spec(heads=HeadShape(heads=2, kv_heads=2, head_dim=40)))
    with pytest.raises(UnsupportedModelError, match="head_dim 40"):
        Layout(program=program, limits=limits(), isa="portable")


@pytest.mark.parametrize("isa", ["avx512bf16", "avx2"])
def test_rows_do_not_alias(isa: str) -> None:
    layout = Layout(program=dense_program(small_spec(hidden_size=2048)), limits=limits(), isa=isa)
    for value in layout.value_index:
        row_bytes = layout.row_bytes(value)
        assert row_bytes % 64 == 0
        assert row_bytes % 256 != 0
        assert row_bytes >= value.width * layout.element_bytes(value.dtype)
    assert layout.element_bytes(DType.BF16) == (2 if isa == "avx512bf16" else 4)
