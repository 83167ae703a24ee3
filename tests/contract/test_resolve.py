from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from firelane.contract import (
    CAUSAL,
    BackendDefaults,
    Span,
    StepLimits,
    Window,
    resolve_limits,
    smallest_limits,
)
from firelane.contract.resolve import GIB
from firelane.engine_config import Beside, EngineConfig, ExecutorConfig
from firelane.errors import OutOfMemoryError, UsageError

DEFAULTS = BackendDefaults(block_size=16, max_num_batched_tokens=512)


@dataclass
class Model:
    max_model_len: int = 512
    kv_bytes_per_token: int = 1000
    spans: tuple[Span, ...] = (CAUSAL,)
    state_bytes: int = 0


PAGE_BYTES = 16 * Model.kv_bytes_per_token


def config(**sizes) -> ExecutorConfig:
    return ExecutorConfig(cache_dir=Path("/nowhere"), **{"max_num_seqs": 4} | sizes)


def limits(free_bytes: int, default_kv_bytes: int | None = None, **sizes) -> StepLimits:
    return resolve_limits(
        Model(), config(**sizes), DEFAULTS, free_bytes=free_bytes, default_kv_bytes=default_kv_bytes
    )


def test_the_cache_takes_what_is_free_or_what_the_backend_gives_it() -> None:
    assert limits(100 * PAGE_BYTES + 1).num_blocks == 100
    assert limits(100 * PAGE_BYTES, 50 * PAGE_BYTES).num_blocks == 50
    assert limits(100 * PAGE_BYTES, 50 * PAGE_BYTES, kv_cache_bytes=60 * PAGE_BYTES).num_blocks == 60


def test_the_cache_takes_no_more_than_all_sequences_can_use() -> None:
    assert limits(GIB).num_blocks == 4 * 512 // 16
    assert limits(GIB, kv_cache_bytes=GIB // 2).num_blocks == 4 * 512 // 16


@pytest.mark.parametrize(("asked", "told"), [(900 * GIB, True), (2 * GIB, True), (GIB // 2, False)])
def test_a_cache_larger_than_memory_that_is_not_needed_is_told(caplog, asked: int, told: bool) -> None:
    limits(GIB, kv_cache_bytes=asked)
    assert ("4) and max_model_len can use; 1.00 GiB of memory are free" in caplog.text) is told
    assert (f"--kv-cache-gib {asked / GIB:.2f}" in caplog.text) is told


def test_a_second_model_shares_the_cache_with_as_many_pages() -> None:
    beside = Beside(weights_bytes=0, kv_bytes_per_token=1000)
    assert limits(100 * PAGE_BYTES, beside=beside).num_blocks == 50
    assert limits(10 * PAGE_BYTES, beside=beside).max_model_len == 80
    with pytest.raises(OutOfMemoryError, match=r"room for 80 tokens"):
        limits(10 * PAGE_BYTES, beside=beside, max_model_len=100)


def test_pages_of_a_second_model_are_as_many_as_it_is_told() -> None:
    """Also more than its own sequences could use, and no more than there is memory for."""
    sizes = {"kv_cache_bytes": 200 * PAGE_BYTES, "num_blocks": 200}
    assert limits(GIB, **sizes).num_blocks == 200
    with pytest.raises(OutOfMemoryError, match="lower it, or leave it out"):
        limits(150 * PAGE_BYTES, **sizes)


def test_the_context_shrinks_to_what_fits_unless_it_was_asked_for() -> None:
    assert limits(10 * PAGE_BYTES).max_model_len == 160
    assert limits(10 * PAGE_BYTES, max_model_len=150).max_model_len == 150
    with pytest.raises(OutOfMemoryError, match=r"room for 160 tokens in .* one sequence of 512 needs"):
        limits(10 * PAGE_BYTES, max_model_len=512)


@pytest.mark.parametrize(
    ("free_bytes", "default_kv_bytes"), [(-1, None), (0, None), (PAGE_BYTES - 1, None), (GIB, 0)]
)
def test_no_room_for_a_single_page(free_bytes: int, default_kv_bytes: int | None) -> None:
    with pytest.raises(OutOfMemoryError, match="room for 0 tokens"):
        limits(free_bytes, default_kv_bytes)


def test_more_cache_than_memory_is_refused() -> None:
    assert limits(40 * PAGE_BYTES, kv_cache_bytes=40 * PAGE_BYTES).num_blocks == 40
    with pytest.raises(OutOfMemoryError, match=r"--kv-cache-gib .* free beside the weights"):
        limits(40 * PAGE_BYTES, kv_cache_bytes=41 * PAGE_BYTES)


def test_sizes_left_open_are_the_backends() -> None:
    found = limits(GIB)
    assert (found.block_size, found.max_num_batched_tokens, found.max_output_rows) == (16, 512, 36)
    found = limits(GIB, max_num_seqs=600, block_size=32)
    assert (found.block_size, found.max_num_batched_tokens, found.max_output_rows) == (32, 600, 600)


def test_the_smallest_limits_hold_one_sequence() -> None:
    assert smallest_limits(Model(), config(), DEFAULTS).num_blocks == 32
    assert smallest_limits(Model(), config(max_model_len=33), DEFAULTS).num_blocks == 3


def test_groups_share_the_pages_and_a_window_needs_few_of_them() -> None:
    mixed = Model(max_model_len=4096, spans=(CAUSAL, Window(256)))
    sizes = config(max_num_batched_tokens=128)
    least = smallest_limits(mixed, sizes, DEFAULTS)
    assert least.spans == mixed.spans
    assert 256 < least.num_blocks < 256 + (256 + 128 + 64) // 16 + 2
    free = least.num_blocks * PAGE_BYTES
    assert resolve_limits(mixed, sizes, DEFAULTS, free_bytes=free).max_model_len == 4096
    assert resolve_limits(mixed, sizes, DEFAULTS, free_bytes=free - 1).max_model_len < 4096


STATE = 64 * 1000
HYBRID = Model(state_bytes=STATE)


def hybrid(budget: int, **sizes) -> StepLimits:
    return resolve_limits(HYBRID, config(**sizes), DEFAULTS, free_bytes=budget)


def test_states_come_before_pages() -> None:
    found = hybrid(40 * STATE)
    assert (found.state_bytes, found.max_num_seqs, found.num_snapshots) == (STATE, 4, 10)
    assert found.num_states == 14
    assert found.num_blocks == (40 - 14) * STATE // PAGE_BYTES
    found = hybrid(40 * STATE, state_snapshots=20)
    assert (found.num_states, found.num_blocks) == (24, 16 * STATE // PAGE_BYTES)


def test_spare_states_take_an_eighth_at_most() -> None:
    assert hybrid(40 * STATE, spare_states=8).num_spares == 4
    found = hybrid(20 * STATE, spare_states=8)
    assert (found.num_spares, found.first_spare, found.num_states) == (2, 9, 11)
    assert found.num_blocks == (20 - 11) * STATE // PAGE_BYTES
    assert hybrid(7 * STATE, spare_states=8).num_spares == 0
    assert hybrid(GIB, spare_states=2).num_spares == 2
    assert hybrid(GIB).num_spares == 0
    assert limits(GIB, spare_states=8).num_spares == 0


def test_spare_states_leave_the_longest_sequence_its_pages() -> None:
    """There are none where they would shorten it, whether or not its length was configured."""
    pages = smallest_limits(HYBRID, config(), DEFAULTS).num_blocks
    states = {"max_num_seqs": 1, "state_snapshots": 0, "spare_states": 1}
    least = pages * PAGE_BYTES + STATE
    assert least > 8 * STATE
    for length in ({}, {"max_model_len": HYBRID.max_model_len}):
        found = hybrid(least + STATE - 1, **states, **length)
        assert (found.num_spares, found.max_model_len) == (0, HYBRID.max_model_len)
        found = hybrid(least + STATE, **states, **length)
        assert (found.num_spares, found.max_model_len) == (1, HYBRID.max_model_len)


def test_snapshots_are_no_more_than_are_of_use() -> None:
    assert hybrid(GIB).num_snapshots == 4 * 16
    assert hybrid(GIB, state_snapshots=200).num_snapshots == 200


def test_fewer_sequences_run_where_their_states_would_take_too_much(caplog) -> None:
    found = hybrid(100 * STATE, max_num_seqs=256, max_num_batched_tokens=300)
    assert (found.max_num_seqs, found.num_snapshots, found.max_output_rows) == (50, 25, 82)
    assert "max_num_seqs is lowered from 256 to 50" in caplog.text


def test_states_that_leave_no_room_for_pages_are_refused_with_what_to_lower() -> None:
    message = r"states of 4 sequences and 40 snapshots take .* lower --max-model-len, state_snapshots or"
    with pytest.raises(OutOfMemoryError, match=message):
        hybrid(40 * STATE, state_snapshots=40)
    with pytest.raises(OutOfMemoryError, match="states of 1 sequences and 0 snapshots"):
        hybrid(STATE)


def test_a_model_without_states_has_no_snapshots() -> None:
    assert limits(GIB, state_snapshots=5).num_snapshots == 0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"state_snapshots": -1}, "state_snapshots: -1 is not 0 or more"),
        ({"state_snapshot_interval": 0}, "state_snapshot_interval: 0 is not 1 or more"),
        ({"state_snapshots": 3, "prefix_cache": False}, "without the prefix cache no prompt begins with one"),
    ],
)
def test_settings_of_snapshots_that_make_no_sense_are_refused(settings: dict, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        EngineConfig(cache_dir=Path("/nowhere"), model_dir=Path("/nowhere"), **settings)
