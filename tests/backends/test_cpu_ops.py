"""Every op kind against its NumPy reference: on each instruction set, in each dtype, at awkward shapes and
row counts.

The program runs once with no two values sharing memory, so that every intermediate value can be read. Then
each op's reference runs on the very inputs that the kernel had, and the outputs are compared: the bound is
one op's error.

Programs of one dtype are compiled as one, which shares between them what each would have of its own: the
headers, the runtime, the sampler, kernels of equal shapes. The best instruction set has all of them, the
others all kinds of ops in both dtypes. Only the head of the last one gives hidden states, and logits of those
rows alone that ask for them; the heads of the others are products of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane.contract import CAUSAL, EMBED, Window
from firelane.contract import Chunk as ChunkSpan
from firelane.native.machine import cpu_identity, supported_isas
from firelane.program.cache_codes import CacheCode
from firelane.program.cache_rewrite import with_cache_code
from firelane.program.ops import Attention, HeadShape, LatentCache, Op, RopeAndCache, Sample
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor
from firelane.program.reference_step import ReferenceStep
from firelane.program.values import DType, Rows, Value
from tests.backends.cache_pages import check_codes
from tests.backends.cpu_harness import (
    HERE,
    Chunk,
    Machine,
    apart,
    limits,
    machine,
    small_spec,
    widen_bf16,
    with_spans,
)
from tests.models.dense import DenseSpec, dense_program
from tests.models.experts import EXPERT_SPECS, EXPERT_SPECS_HERE, experts_program
from tests.models.joined import joined
from tests.models.latents import CHOSEN_SPECS, LATENT_SPECS, LATENT_SPECS_HERE, latent_program
from tests.models.options import OPTIONS
from tests.models.recurrent import RECURRENT_SPECS, RECURRENT_SPECS_HERE, recurrent_program

WIDE = HeadShape(heads=4, kv_heads=1, head_dim=80)
GROUPS = HeadShape(heads=6, kv_heads=2, head_dim=48)
Spec = DenseSpec | Program
SPECS: dict[str, Spec] = {
    "bf16": small_spec(
        heads=WIDE, windows=(0, 20), qk_norm=True, qkv_bias=True, output_bias=True, mlp_bias=True
    ),
    "f32": small_spec(dtype=DType.F32, windows=(20, 0), qk_norm=True, mlp_bias=True),
    **{name: experts_program(spec) for name, spec in EXPERT_SPECS.items()},
    **{name: recurrent_program(spec) for name, spec in RECURRENT_SPECS.items()},
    **{name: latent_program(spec) for name, spec in (LATENT_SPECS | CHOSEN_SPECS).items()},
    "bf16-int8": small_spec(heads=replace(WIDE, code=CacheCode.INT8), windows=(0, 20)),
    "bf16-latent-fp8": with_cache_code(latent_program(LATENT_SPECS["bf16-latent"]), CacheCode.FP8),
}
# On other instruction sets, layers that differ by their span alone are compiled once: a span is a matter of
# which tiles are read, not of vectors. Each set has each kind of attention with each span that SPECS has, in
# one dtype or the other.
SPECS_ELSEWHERE: dict[str, Spec] = SPECS | {
    "f32": small_spec(dtype=DType.F32, windows=(20,), qk_norm=True, mlp_bias=True),
    "bf16-int8": small_spec(heads=replace(WIDE, code=CacheCode.INT8), windows=(20,)),
    "bf16-latent": latent_program(replace(LATENT_SPECS["bf16-latent"], spans=(Window(20),))),
    "f32-latent": latent_program(replace(LATENT_SPECS["f32-latent"], spans=(ChunkSpan(24),))),
    "bf16-latent-fp8": with_cache_code(
        latent_program(replace(LATENT_SPECS["bf16-latent"], spans=(CAUSAL,))), CacheCode.FP8
    ),
}
# Without what the others have, other spans, more head widths with one query head per KV head or several, and
# large blocks: with the best instruction set alone. By the size of a block.
SPECS_HERE: dict[int, dict[str, Spec]] = {
    16: {
        "bf16-plain": small_spec(tied_embeddings=True),
        "bf16-chunks": with_spans(dense_program(small_spec()), (ChunkSpan(24), Window(70))),
        "bf16-head-128": small_spec(heads=HeadShape(heads=2, kv_heads=1, head_dim=128), qk_norm=True),
        "f32-int8": small_spec(heads=replace(GROUPS, code=CacheCode.INT8), dtype=DType.F32, qk_norm=True),
        **{name: experts_program(spec) for name, spec in EXPERT_SPECS_HERE.items()},
        **{name: recurrent_program(spec) for name, spec in RECURRENT_SPECS_HERE.items()},
        **{
            f"{dtype.value}-{name}": make(dtype)
            for name, make in OPTIONS.items()
            for dtype in (DType.BF16, DType.F32)
        },
    },
    64: {
        "f32-latent-int8": with_cache_code(
            latent_program(LATENT_SPECS_HERE["f32-latent-still"]), CacheCode.INT8
        ),
    },
    128: {
        "bf16-narrow-values": small_spec(heads=replace(GROUPS, value_dim=32), windows=(0, 20)),
        "f32-wide-values": small_spec(heads=replace(WIDE, value_dim=112), dtype=DType.F32),
        "bf16-head-16": small_spec(heads=HeadShape(heads=4, kv_heads=4, head_dim=16)),
        "bf16-head-64": small_spec(heads=HeadShape(heads=3, kv_heads=1, head_dim=64), windows=(0, 20)),
        "bf16-fp8": small_spec(heads=replace(GROUPS, code=CacheCode.FP8), windows=(0, 20)),
        "f32-head-256": small_spec(heads=HeadShape(heads=2, kv_heads=1, head_dim=256), dtype=DType.F32),
        **{name: latent_program(spec) for name, spec in LATENT_SPECS_HERE.items()},
    },
}
DTYPES = ("bf16", "f32")


def of_dtype(specs: Mapping[str, Spec], dtype: str) -> Program:
    """All of `specs` in `dtype`, which their names begin with, as one program."""
    chosen = {name: spec for name, spec in specs.items() if name.startswith(dtype)}
    return joined(
        {n: spec if isinstance(spec, Program) else dense_program(spec) for n, spec in chosen.items()}
    )


# By name: the instruction set, the program, the size of a block.
CASES = {
    f"{isa}/{dtype}": (isa, of_dtype(SPECS if isa == HERE else SPECS_ELSEWHERE, dtype), 16)
    for isa in supported_isas(cpu_identity())
    for dtype in DTYPES
} | {
    f"{HERE}/{dtype}-more-{size}": (HERE, of_dtype(specs, dtype), size)
    for size, specs in SPECS_HERE.items()
    for dtype in DTYPES
    if any(name.startswith(dtype) for name in specs)
}
STEPS = {
    "one-token": [[Chunk(0, 0, 1)]],
    "prompt-then-decode": [[Chunk(1, 0, 70)], [Chunk(1, 70, 1)]],
    "mixed": [[Chunk(0, 0, 33), Chunk(2, 0, 64)], [Chunk(2, 64, 1), Chunk(0, 33, 100), Chunk(3, 0, 13)]],
    "score": [[Chunk(0, 0, 20, score=True)]],
}
# Relative to the largest output of the op. One rounding to bf16 is 2^-8 of a value at worst, and a sum of
# products of bf16 numbers in float32, in another order than NumPy's, errs far less. Attention rounds twice:
# its output, and before that its weights, relative to a running maximum where the reference knows the last
# one, while its output, an average of values of both signs, may be small beside the values themselves.
BOUNDS = {DType.F32: 2e-5, DType.BF16: 2.0**-8, DType.I32: 0.0}
ATTENTION_BOUNDS = {**BOUNDS, DType.BF16: 2.0**-7}


@pytest.fixture(scope="module", params=CASES)
def driven(request: pytest.FixtureRequest, kernel_cache) -> Iterator[Machine]:
    isa, spec, block_size = CASES[request.param]
    m = machine(spec, kernel_cache, isa=isa, sizes=limits(block_size=block_size, num_blocks=400), place=apart)
    yield m
    m.executor.release()


def read(m: Machine, value: Value, rows: int) -> NDArray[np.float32]:
    """Read the rows that the kernels left in `value`, as float32 [rows, width]."""
    layout = m.executor.layout
    start, row_bytes = layout.placement.offsets[value], layout.row_bytes(value)
    raw = m.executor.arena[start : start + rows * row_bytes]
    kind: Any = np.uint16 if layout.element_bytes(value.dtype) == 2 else np.float32
    kind = np.int32 if value.dtype is DType.I32 else kind
    matrix = raw.view(kind).reshape(rows, -1)[:, : value.width]
    return widen_bf16(np.ascontiguousarray(matrix)) if kind is np.uint16 else matrix.astype(np.float32)


def check_step(m: Machine, reference: ReferenceExecutor, chunks: list[Chunk]) -> None:
    m.executor.arena[:] = 0xFF
    state = m.executor.state
    tokens, before = state.tokens.copy(), m.executor.states.copy()
    outputs = m.step(chunks)
    told = outputs.features[: m.inputs.num_tokens].copy()
    state.tokens[...] = tokens
    step = reference.begin(m.inputs, state)
    counts = {Rows.TOKEN: m.inputs.num_tokens, Rows.OUTPUT: m.inputs.num_rows}
    for op in m.executor.layout.program.ops:
        if isinstance(op, Sample):
            continue
        op.reference(step)
        check_cache(m, step, op)
        bounds = ATTENTION_BOUNDS if isinstance(op, Attention) else BOUNDS
        for value in op.outputs:
            mine = read(m, value, counts[value.rows])
            expected = step.read(value)
            assert np.isfinite(mine).all(), f"{value.name} is not finite"
            error = np.abs(mine - expected).max() / max(np.abs(expected).max(), 1e-30)
            assert error <= bounds[value.dtype], f"{type(op).__name__} {value.name}: error {error:.2e}"
            step.values[value] = mine  # the next op's reference starts from what its kernel had
    np.testing.assert_array_equal(told, step.features)
    check_states(m, step)
    m.executor.states[:] = before
    check_hidden(m, step)


def check_cache(m: Machine, step: ReferenceStep, op: Op) -> None:
    """Codes that the op has left in the pages; plain numbers show in what attention makes of them."""
    for layer in m.executor.layout.program.cache_layers:
        writes = isinstance(op, RopeAndCache | LatentCache) and op.layer == layer.layer
        if writes and layer.shape.code is not None:
            check_codes(m, step, layer)


def check_states(m: Machine, step: ReferenceStep) -> None:
    """The recurrent states that chunks have left, and that the next step's reference starts from."""
    layout = m.executor.layout
    pool = m.executor.states[: m.executor.limits.num_states * layout.program.state_bytes]
    for state in layout.program.state_layers:
        start = layout.state_offsets[state.name]
        rows = pool.reshape(m.executor.limits.num_states, -1)[:, start : start + state.nbytes]
        mine = np.ascontiguousarray(rows).view(np.float32).reshape(-1, *state.shape)
        for chunk in step.chunks:
            expected = step.states[state.name][chunk.state_to]
            error = np.abs(mine[chunk.state_to] - expected).max() / max(np.abs(expected).max(), 1e-30)
            assert error <= BOUNDS[DType.F32], f"state of {state.name}: error {error:.2e}"
            step.states[state.name][chunk.state_to] = mine[chunk.state_to]


def check_hidden(m: Machine, step: ReferenceStep) -> None:
    """The same step with every row embedded gives what the head read, and computes no logits."""
    head = m.executor.layout.program.head
    assert head is not None
    m.executor.arena[:] = 0xFF
    outputs = m.again(EMBED)
    assert (outputs.hidden[: m.inputs.num_rows] == step.read(head.x)).all()
    assert np.isnan(read(m, head.out, m.inputs.num_rows)).all()


@pytest.mark.parametrize("name", STEPS)
def test_ops_agree_with_their_references(driven: Machine, name: str) -> None:
    sizes = driven.executor.limits
    program = driven.executor.layout.program
    reference = ReferenceExecutor(
        program, driven.weights.values, slots=sizes.max_num_seqs, max_len=sizes.max_model_len
    )
    rng = np.random.default_rng(3)
    for slot in range(4):
        driven.greedy(slot, rng.integers(0, program.vocab_size, 200).tolist())
        driven.give_blocks(slot, rng.permutation(100)[: sizes.blocks_per_seq] + 100 * slot)
    for chunks in STEPS[name]:
        check_step(driven, reference, chunks)


def test_limits_are_used_to_the_last_row(driven: Machine) -> None:
    """A step as large as the limits allow touches nothing beyond them (the arena's end would show it)."""
    sizes = driven.executor.limits
    driven.greedy(0, [1] * sizes.max_num_batched_tokens)
    driven.give_blocks(0, range(sizes.blocks_per_seq))
    outputs = driven.step([Chunk(0, 0, sizes.max_num_batched_tokens)])
    assert 0 <= outputs.tokens[0] < driven.executor.vocab_size
