from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cpu_harness import small_spec

from firelane.backends.cpu.memory import GIB, step_limits, zeroed
from firelane.backends.request import ExecutorRequest
from firelane.errors import OutOfMemoryError
from firelane.models.dense import dense_program

PROGRAM = dense_program(small_spec())
BLOCK_BYTES = PROGRAM.kv_bytes_per_token * 16


def limits(free_bytes: int, **sizes: Any):
    request = ExecutorRequest(cache_dir=Path(), max_num_seqs=4, **sizes)
    return step_limits(PROGRAM, request.settled(block_size=16, max_num_batched_tokens=512), free_bytes)


def test_cache_takes_its_share_of_what_is_free() -> None:
    assert limits(100 * BLOCK_BYTES).num_blocks == 50
    assert limits(100 * BLOCK_BYTES).max_model_len == 512


def test_cache_takes_no_more_than_all_sequences_can_use() -> None:
    assert limits(GIB).num_blocks == 4 * 512 // 16
    assert limits(GIB, kv_cache_bytes=GIB // 2).num_blocks == 4 * 512 // 16


def test_context_shrinks_to_what_fits_unless_it_was_asked_for() -> None:
    assert limits(20 * BLOCK_BYTES).max_model_len == 160
    with pytest.raises(OutOfMemoryError, match="one sequence of 512"):
        limits(20 * BLOCK_BYTES, max_model_len=512)


def test_more_cache_than_memory_is_refused() -> None:
    assert limits(40 * BLOCK_BYTES, kv_cache_bytes=40 * BLOCK_BYTES).num_blocks == 40
    with pytest.raises(OutOfMemoryError, match=r"--kv-cache-gib .* free beside the weights"):
        limits(40 * BLOCK_BYTES, kv_cache_bytes=41 * BLOCK_BYTES)


def test_memory_that_the_system_refuses() -> None:
    with pytest.raises(OutOfMemoryError, match=r"131072\.0 GiB of memory cannot be had"):
        zeroed(1 << 47)


def test_memory_is_zero() -> None:
    assert not zeroed(100).any()
