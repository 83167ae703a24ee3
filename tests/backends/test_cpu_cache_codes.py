"""Coded KV caches on the CPU: every code is read right, pages hold the same bytes whatever the schedule, and
a row that is not finite stays with its sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from firelane.contract import CAUSAL, Window
from firelane.program.cache_codes import CacheCode
from firelane.program.cache_rewrite import with_cache_code
from firelane.program.reference import ReferenceExecutor
from tests.backends.cache_pages import cached_rows
from tests.backends.cpu_harness import Chunk, Machine, apart, limits, machine, small_spec
from tests.backends.test_cpu_ops import check_step
from tests.models.dense import dense_program
from tests.models.latents import LatentSpec, latent_program

DENSE = dense_program(small_spec(windows=(0, 37)))
LATENT = latent_program(LatentSpec(spans=(CAUSAL, Window(70))))
MODELS = {
    f"{name}-{code.value}": with_cache_code(program, code)
    for name, program in (("dense", DENSE), ("latent", LATENT))
    for code in CacheCode
}
CONTEXT = 150
SCHEDULES = {"whole": [CONTEXT], "chunks": [50, 1, 64, 30, 5], "tokens": [90, *[1] * (CONTEXT - 90)]}


@pytest.fixture(scope="module", params=MODELS)
def driven(request: pytest.FixtureRequest, kernel_cache) -> Iterator[Machine]:
    m = machine(MODELS[request.param], kernel_cache, sizes=limits(num_blocks=80), place=apart)
    yield m
    m.executor.release()


def start(m: Machine, slot: int, first: int = 0, seed: int = 5) -> None:
    m.greedy(slot, np.random.default_rng(seed).integers(1, 331, CONTEXT + 10).tolist())
    m.give_blocks(slot, range(first, first + m.executor.limits.blocks_per_seq))


def test_every_code_is_read(driven: Machine) -> None:
    """Behind a context of all codes and of scales of any size, a token attends as the reference does."""
    rng, program = np.random.default_rng(1), driven.executor.layout.program
    start(driven, 0)
    (code,) = {c.shape.code for c in program.cache_layers}
    finite = [c for c in range(256) if c not in ((0x80,) if code is CacheCode.INT8 else (0x7F, 0xFF))]
    driven.executor.pages[:] = rng.choice(np.array(finite, np.uint8), driven.executor.pages.shape)
    reference = ReferenceExecutor(program, driven.weights.values, slots=32, max_len=320)
    positions = np.arange(CONTEXT)
    for layer in program.cache_layers:
        fill_scales(driven, layer)
        rows = cached_rows(driven, layer, 0, positions)
        cache = reference.cache
        parts = cache.keys[layer.layer], cache.values[layer.layer], cache.value_scales[layer.layer]
        for held, found in zip(parts, rows, strict=True):
            held[0, :CONTEXT] = found
    check_step(driven, reference, [Chunk(0, CONTEXT, 1)])
    check_step(driven, reference, [Chunk(0, CONTEXT + 1, 5)])


def fill_scales(m: Machine, layer) -> None:
    """Small and large ones, so that scores stay within reach of exp."""
    layout, s = m.executor.layout, layer.shape
    place, size = layout.cache_places[layer.layer], layout.limits.block_size
    end = place.keys + layer.bytes_per_token * size
    held = m.executor.pages[:, place.keys : end].reshape(len(m.executor.pages), s.kv_heads, -1)
    scales = np.random.default_rng(2).choice([0x3A80, 0x3B07, 0x3900, 0x0000], (*held.shape[:2], 2 * size))
    at = s.head_dim * size
    m.executor.pages[:, place.keys : end].reshape(held.shape)[..., at : at + 4 * size] = scales.astype(
        np.uint16
    ).view(np.uint8)


def pages_after(m: Machine, schedule: Sequence[int], company: int) -> bytes:
    """The whole blocks of slot 0, read in chunks of `schedule` beside other sequences."""
    m.executor.pages[:] = 0
    start(m, 0)
    for slot in range(1, 1 + company):
        start(m, slot, first=20 * slot, seed=slot)
    at = 0
    for length in schedule:
        others = [Chunk(slot, at // 3, 1, sample=False) for slot in range(1, 1 + company)]
        m.step([*others, Chunk(0, at, length, sample=False)])
        at += length
    tables = m.executor.state.block_tables[:, 0, : CONTEXT // m.executor.limits.block_size]
    return m.executor.pages[tables.reshape(-1)].tobytes()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_same_bytes_in_any_chunks_and_company(driven: Machine, schedule: str) -> None:
    whole = pages_after(driven, SCHEDULES["whole"], 0)
    assert pages_after(driven, SCHEDULES[schedule], 0) == whole
    assert pages_after(driven, SCHEDULES[schedule], 2) == whole


def test_rows_that_are_not_finite_stay_with_their_sequence(driven: Machine) -> None:
    """Token 0 is given an infinite embedding: its sequence's answers are NaN, a neighbour's are not, nor are
    those of who has its pages next."""
    program = driven.executor.layout.program
    clean = answer(driven, 1, 20, [])
    table = driven.weights._packed[program.ops[0].table.name].reshape(-1).view(np.uint16)
    kept, table[0] = table[0], 0x7F80
    try:
        start(driven, 0)
        driven.executor.state.tokens[0, 3] = 0
        assert answer(driven, 1, 20, [Chunk(0, 0, 40)]) == clean
        rows = cached_rows(driven, program.cache_layers[0], 0, np.arange(8))
        assert np.isnan(rows.value_scales[:, 0]).tolist() == [at == 3 for at in range(8)]
        assert (rows.values[3] == 0).all()
    finally:
        table[0] = kept
    assert answer(driven, 1, 0, []) == clean


def answer(m: Machine, slot: int, first: int, others: list[Chunk]) -> bytes:
    """The log-probabilities of a few tokens after a prompt, in pages from `first` on."""
    start(m, slot, first=first)
    found = [m.step([*others, Chunk(slot, 0, 33)]).logprobs[len(others)]]
    found += [m.step([Chunk(slot, 33 + i, 1)]).logprobs[0] for i in range(3)]
    assert np.isfinite(found).all()
    return np.array(found).tobytes()
