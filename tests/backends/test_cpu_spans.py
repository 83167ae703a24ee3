"""Pages behind a span: what lies there, and what the block table says of them, matters to no result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from firelane.contract import CAUSAL, Window, kept_from
from firelane.contract import Chunk as ChunkSpan
from firelane.program.cache_codes import CacheCode
from firelane.program.cache_rewrite import with_cache_code
from firelane.program.values import DType
from tests.backends.cpu_harness import Chunk, Machine, limits, machine, small_spec, with_spans
from tests.models.dense import dense_program

PROMPT_TOKENS, OUTPUTS = 230, 12
SCHEDULES = {
    "whole": [PROMPT_TOKENS],
    "chunks": [50, 1, 64, 77, 38],
    "tokens": [100, *[1] * (PROMPT_TOKENS - 100)],
}
BF16, F32 = (dense_program(small_spec(windows=(0,) * 3, dtype=dtype)) for dtype in (DType.BF16, DType.F32))
MODELS = {
    "causal, window, chunk": (with_spans(BF16, (Window(37), CAUSAL, ChunkSpan(52))), 16),
    "codes": (with_cache_code(with_spans(BF16, (Window(37), CAUSAL, ChunkSpan(52))), CacheCode.FP8), 16),
    "narrow windows": (with_spans(BF16, (Window(1), Window(63), Window(65))), 32),
    "chunks": (with_spans(F32, (ChunkSpan(100), CAUSAL, ChunkSpan(7))), 16),
    "pages beyond a tile": (with_spans(BF16, (ChunkSpan(41), Window(130), Window(41))), 128),
}


@pytest.fixture(scope="module", params=MODELS)
def driven(request: pytest.FixtureRequest, kernel_cache) -> Iterator[Machine]:
    program, block_size = MODELS[request.param]
    m = machine(program, kernel_cache, sizes=limits(block_size=block_size, num_blocks=24))
    yield m
    m.executor.release()


def start(m: Machine) -> None:
    """Slot 0 with a prompt, and pages in no order; all memory of the cache is NaN."""
    m.executor.pages[:] = 0xFF
    rng = np.random.default_rng(11)
    m.greedy(0, rng.integers(0, 331, PROMPT_TOKENS).tolist())
    m.give_blocks(0, rng.permutation(23)[: m.executor.limits.blocks_per_seq].tolist())


def release(m: Machine, position: int, *, beyond: int = 0) -> None:
    """Overwrite each page before the first that a query at `position` may read, and `beyond` more, and let
    its table entry name a page of another sequence."""
    sizes = m.executor.limits
    for group, span in enumerate(sizes.spans):
        table = m.executor.state.block_tables[group, 0]
        count = min(kept_from(span, position) // sizes.block_size + beyond, position // sizes.block_size)
        m.executor.pages[table[:count]] = 0xFF
        table[:count] = sizes.num_blocks - 1


def run(m: Machine, schedule: Sequence[int], *, releases: bool, beyond: int = 0) -> list[bytes]:
    """The bytes of all that is drawn after the prompt, computed in chunks of `schedule`."""
    start(m)
    drawn: list[bytes] = []
    at = 0
    for length in [*schedule, *[1] * (OUTPUTS - 1)]:
        if releases:
            release(m, at, beyond=beyond)
        out = m.step([Chunk(0, at, length, sample=at + length >= PROMPT_TOKENS)])
        at += length
        if at >= PROMPT_TOKENS:
            arrays = out.tokens[:1], out.logprobs[:1], out.top_ids[0, :5], out.top_logprobs[0, :5]
            drawn.append(b"".join(a.tobytes() for a in arrays))
    return drawn


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_released_pages_do_not_matter(driven: Machine, schedule: str) -> None:
    kept = run(driven, SCHEDULES["whole"], releases=False)
    assert len(kept) == OUTPUTS
    assert np.isfinite(np.frombuffer(kept[-1][4:8], np.float32)).all()
    assert run(driven, SCHEDULES[schedule], releases=True) == kept


def test_one_page_more_would_matter(driven: Machine) -> None:
    """The test above sees what it is there for."""
    kept = run(driven, SCHEDULES["whole"], releases=False)
    assert run(driven, SCHEDULES["chunks"], releases=True, beyond=1) != kept


def test_groups_share_pages_but_no_page(driven: Machine) -> None:
    """Each group has its block table, whose pages hold its layers alone."""
    program = driven.executor.layout.program
    assert len(program.cache_groups) == len(driven.executor.state.block_tables)
    assert {group.span for group in program.cache_groups} == {c.span for c in program.cache_layers}
    assert driven.executor.pages.shape == (
        driven.executor.limits.num_blocks,
        program.kv_bytes_per_token * driven.executor.limits.block_size,
    )
