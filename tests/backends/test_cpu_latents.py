"""Latent attention on the CPU over contexts of several splits: against the reference, and the same bits
whoever shares the step or the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane.backends.cpu.codegen.layout import check_heads
from firelane.contract import CAUSAL, Window
from firelane.errors import UnsupportedModelError
from firelane.program.cache import CacheLayer
from firelane.program.cache_codes import CacheCode
from firelane.program.cache_rewrite import with_cache_code
from firelane.program.ops import Attention, HeadShape
from firelane.program.reference import ReferenceExecutor
from firelane.program.values import DType
from tests.backends.cache_pages import cached_rows
from tests.backends.cpu_harness import Chunk, Machine, apart, limits, machine, widen_bf16
from tests.backends.test_cpu_ops import check_step
from tests.models.latents import MANY, LatentSpec, latent_program

CONTEXT = 1180  # three splits of 512
LAST = 40
SIZES = limits(max_num_batched_tokens=570, max_output_rows=64, max_model_len=1200, num_blocks=12 * 75)
MODELS = {
    "bf16": LatentSpec(spans=(CAUSAL, Window(700)), max_model_len=2048),
    "f32": LatentSpec(dtype=DType.F32, shape=MANY, spans=(CAUSAL,), max_model_len=2048),
}
MODELS["bf16-chosen"] = replace(MODELS["bf16"], topk=700, spans=(CAUSAL, CAUSAL))
MODELS["f32-chosen"] = replace(MODELS["f32"], topk=77)
PROGRAMS = {name: latent_program(spec) for name, spec in MODELS.items()}
PROGRAMS["bf16-int8"] = with_cache_code(PROGRAMS["bf16"], CacheCode.INT8)
SCHEDULES = {
    "one by one": [1] * LAST,
    "chunks": [1, 7, 1, 30, 1],
}


@pytest.fixture(scope="module", params=PROGRAMS)
def driven(request: pytest.FixtureRequest, kernel_cache) -> Iterator[Machine]:
    m = machine(PROGRAMS[request.param], kernel_cache, sizes=SIZES, place=apart)
    start(m, 12)
    yield m
    m.executor.release()


def start(m: Machine, sequences: int) -> None:
    """That many prompts of CONTEXT - LAST tokens in the cache, in pages in no order."""
    rng = np.random.default_rng(7)
    pages = rng.permutation(12 * 75).reshape(12, 75)
    for slot in range(sequences):
        m.greedy(slot, rng.integers(0, 331, CONTEXT).tolist())
        m.give_blocks(slot, pages[slot].tolist())
        for at in range(0, CONTEXT - LAST, 570):
            m.step([Chunk(slot, at, min(570, CONTEXT - LAST - at), sample=False)])


def scored(m: Machine, schedule: Sequence[int], company: int) -> bytes:
    """Log-probabilities of the last tokens of slot 0, read in chunks of `schedule`, each beside so many
    other sequences."""
    found: list[np.ndarray] = []
    at = CONTEXT - LAST
    for length in schedule:
        others = [Chunk(slot, CONTEXT - LAST - 10 * slot, 1) for slot in range(1, 1 + company)]
        out = m.step([*others, Chunk(0, at, length, score=True)])
        found.append(out.logprobs[company : company + length].copy())
        at += length
    return np.concatenate(found).tobytes()


def test_against_the_reference(driven: Machine) -> None:
    """A token that is decoded, its splits worked on apart, then a chunk."""
    sizes, program = driven.executor.limits, driven.executor.layout.program
    reference = ReferenceExecutor(
        program, driven.weights.values, slots=sizes.max_num_seqs, max_len=sizes.max_model_len
    )
    for layer in program.cache_layers:
        at = (layer.layer, 0, slice(0, CONTEXT - LAST))
        if layer.shape.code is None:
            rows = index_keys if layer.layer >= len(program.streams) - 1 else latents
            reference.cache.keys[at[0]][at[1:]] = rows(driven, layer)[:, None]
            continue
        rows = cached_rows(driven, layer, 0, np.arange(CONTEXT - LAST))
        reference.cache.keys[at[0]][at[1:]] = rows.keys
        reference.cache.values[at[0]][at[1:]] = rows.values
        reference.cache.value_scales[at[0]][at[1:]] = rows.value_scales
    check_step(driven, reference, [Chunk(0, CONTEXT - LAST, 1)])
    check_step(driven, reference, [Chunk(0, CONTEXT - LAST + 1, 3)])


def latents(m: Machine, layer: CacheLayer) -> NDArray[np.float32]:
    """Return the latents of slot 0 from the pages, where two positions lie beside each other in bf16."""
    width, pages = layer.shape.cached_width, held(m, layer)
    if layer.dtype is DType.BF16:
        pairs = pages.copy().view(np.uint16).reshape(-1, width, 2).transpose(0, 2, 1)
        found = widen_bf16(np.ascontiguousarray(pairs))
    else:
        found = pages.copy().view(np.float32)
    return found.reshape(-1, width)[: CONTEXT - LAST]


def held(m: Machine, layer: CacheLayer) -> NDArray[np.uint8]:
    """The part of slot 0's pages that a layer has: [pages, bytes]."""
    layout = m.executor.layout
    place, nbytes = layout.cache_places[layer.layer], layout.limits.block_size * layer.bytes_per_token
    return m.executor.pages[m.executor.state.block_tables[place.group, 0], place.keys : place.keys + nbytes]


def index_keys(m: Machine, layer: CacheLayer) -> NDArray[np.float32]:
    """Return the keys of an indexer, whose positions lie beside each other for each word of columns."""
    size, words = m.executor.layout.limits.block_size, held(m, layer).copy()
    if layer.dtype is DType.BF16:
        found = widen_bf16(words.view(np.uint16)).reshape(len(words), -1, size, 2)
    else:
        found = words.view(np.float32).reshape(len(words), -1, size, 1)
    return found.transpose(0, 2, 1, 3).reshape(-1, layer.shape.head_dim)[: CONTEXT - LAST]


@pytest.mark.parametrize("company", [0, 1, 11])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_same_bits_whoever_shares_the_step(driven: Machine, schedule: str, company: int) -> None:
    """With eleven others there is no room for the sums of all splits."""
    whole = scored(driven, [LAST], 0)
    assert np.isfinite(np.frombuffer(whole, np.float32)).all()
    assert scored(driven, SCHEDULES[schedule], company) == whole


@pytest.mark.parametrize("threads", [1, 3])
def test_the_same_bits_with_any_number_of_threads(driven: Machine, kernel_cache, threads: int) -> None:
    want = scored(driven, SCHEDULES["chunks"], 0)
    program = driven.executor.layout.program
    other = machine(program, kernel_cache, sizes=SIZES, place=apart, threads=threads)
    start(other, 1)
    assert scored(other, SCHEDULES["chunks"], 0) == want
    other.executor.release()


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32], ids=str)
def test_up_to_the_budget_the_bits_are_those_without_an_indexer(kernel_cache, dtype: DType) -> None:
    """A program of the same weights whose attention does not ask what was chosen. Beyond it, they differ."""
    found: list[bytes] = []
    for topk, asks in ((CONTEXT, True), (CONTEXT, False), (CONTEXT - LAST // 2, True)):
        chosen = latent_program(
            LatentSpec(dtype=dtype, spans=(CAUSAL, CAUSAL), topk=topk, max_model_len=2048)
        )
        ops = tuple(
            replace(op, indices=None) if isinstance(op, Attention) and not asks else op for op in chosen.ops
        )
        m = machine(replace(chosen, ops=ops), kernel_cache, sizes=SIZES, place=apart)
        start(m, 1)
        found.append(scored(m, [LAST], 0))
        m.executor.release()
    sparse, dense, narrow = found
    assert sparse == dense
    half = len(dense) // 2
    assert narrow[:half] == dense[:half]
    assert narrow[half + 64 :] != dense[half + 64 :]


@pytest.mark.parametrize(
    ("heads", "why"),
    [
        (
            HeadShape(heads=2, kv_heads=1, head_dim=64, value_dim=48, code=CacheCode.INT8),
            "cache of int8 .* values as wide as keys",
        ),
        (HeadShape(heads=2, kv_heads=1, head_dim=64, value_dim=40, shared=True), "value_dim 40: .* 16"),
        (HeadShape(heads=2, kv_heads=2, head_dim=64, value_dim=48, shared=True), "need one"),
    ],
    ids=str,
)
def test_shapes_without_kernels_are_refused(heads: HeadShape, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why):
        check_heads(heads)
