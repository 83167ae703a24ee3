"""Each op's reference against torch, and a step's semantics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as fn

from firelane.contract import (
    CAUSAL,
    EMBED,
    SAMPLE,
    SCORE,
    Chunk,
    SlotState,
    Span,
    StepInputs,
    StepLimits,
    Window,
)
from firelane.models.registry import load_program
from firelane.program.ops import (
    Attention,
    GatedLinear,
    HeadNorm,
    HeadShape,
    Linear,
    RMSNorm,
    RopeAndCache,
    Rotary,
)
from firelane.program.recipes import WeightLayout, widened
from firelane.program.reference import ReferenceExecutor, reference_weights
from firelane.program.reference_step import ReferenceCache, ReferenceStep, rounded
from firelane.program.values import DType, Rows, Value, Weight
from tests.models.families import FAMILIES, random_tensors
from tests.weights.files import to_bf16

RNG = np.random.default_rng(0)
SHAPE = HeadShape(heads=4, kv_heads=2, head_dim=8)
LIMITS = StepLimits(
    max_num_seqs=3,
    max_num_batched_tokens=32,
    max_output_rows=8,
    max_model_len=64,
    block_size=16,
    num_blocks=12,
)


def value(name: str, width: int, dtype: DType = DType.F32) -> Value:
    return Value(name, Rows.TOKEN, width, dtype)


def weight(name: str, *shape: int) -> Weight:
    return Weight.stored(name, shape, DType.F32)


def gated(name: str, *shape: int) -> Weight:
    return replace(weight(name, *shape), layout=WeightLayout.GATED)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def step_with(values: dict[Value, np.ndarray], start: int = 0, **weights: np.ndarray) -> ReferenceStep:
    """Consecutive tokens of slot 1 from position `start` on; an empty float32 cache of layer 0."""
    rows = len(next(iter(values.values())))
    empty = np.full((2, 64, SHAPE.kv_heads, SHAPE.head_dim), np.nan, np.float32)
    return ReferenceStep(
        token_ids=np.zeros(rows, np.int64),
        slots=np.ones(rows, np.int64),
        positions=np.arange(start, start + rows),
        row_token=np.arange(rows),
        weights=weights,
        cache=ReferenceCache(keys={0: empty}, values={0: empty.copy()}, dtypes={0: DType.F32}),
        values=dict(values),
    )


def test_rms_norm() -> None:
    x, w = random(3, 16), random(16)
    op = RMSNorm(x=value("x", 16), weight=weight("w", 16), eps=1e-3, out=value("out", 16))
    step = step_with({op.x: x}, w=w)
    op.reference(step)
    want = fn.rms_norm(torch.tensor(x), (16,), torch.tensor(w), 1e-3)
    np.testing.assert_allclose(step.read(op.out), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("extras", [False, True])
def test_linear(extras: bool) -> None:
    x, w, b, r = random(3, 16), random(5, 16), random(5), random(3, 5)
    op = Linear(
        x=value("x", 16),
        weight=weight("w", 5, 16),
        bias=weight("b", 5) if extras else None,
        residual=value("r", 5) if extras else None,
        out=value("out", 5),
    )
    step = step_with({op.x: x, value("r", 5): r}, w=w, b=b)
    op.reference(step)
    np.testing.assert_allclose(step.read(op.out), x @ w.T + (b + r if extras else 0), rtol=1e-5, atol=1e-5)


def test_gated_linear() -> None:
    x, w, b = 30 * random(3, 16), random(10, 16), random(10)
    op = GatedLinear(x=value("x", 16), weight=gated("w", 10, 16), bias=gated("b", 10), out=value("out", 5))
    step = step_with({op.x: x}, w=w, b=b)
    op.reference(step)
    both = torch.tensor(x) @ torch.tensor(w).T + torch.tensor(b)
    want = fn.silu(both[:, :5]) * both[:, 5:]
    np.testing.assert_allclose(step.read(op.out), want, rtol=1e-4, atol=1e-3)


def test_rope_and_cache() -> None:
    """Rotation is a complex product of (i, i + half); norms apply before it; v is not touched."""
    frequencies = (1.0, 0.5, 0.25, 0.125)
    qkv = random(3, 64)
    op = RopeAndCache(
        qkv=value("qkv", 64),
        layer=0,
        shape=SHAPE,
        rotary=Rotary(inverse_frequencies=frequencies),
        norm=HeadNorm(q=weight("qn", 8), k=weight("kn", 8), eps=1e-6),
        out=value("q", 32),
    )
    norms = {"qn": random(8), "kn": random(8)}
    step = step_with({op.qkv: qkv}, start=5, **norms)
    op.reference(step)
    heads = qkv.reshape(3, 8, 8)
    turn = np.exp(1j * np.arange(5, 8)[:, None] * np.array(frequencies))[:, None, :]

    def want(x: np.ndarray, norm: np.ndarray) -> np.ndarray:
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * norm
        z = (x[..., :4] + 1j * x[..., 4:]) * turn
        return np.concatenate([z.real, z.imag], -1)

    np.testing.assert_allclose(step.read(op.out).reshape(3, 4, 8), want(heads[:, :4], norms["qn"]), atol=1e-5)
    keys, values, _ = step.read_cache(0, 1, 5, 8)
    np.testing.assert_allclose(keys, want(heads[:, 4:6], norms["kn"]), atol=1e-5)
    np.testing.assert_array_equal(values, heads[:, 6:])
    assert np.isnan(step.cache.keys[0][0]).all()
    assert np.isnan(step.cache.keys[0][1, :5]).all()


def test_queries_without_keys() -> None:
    """The same queries as beside keys; the cache stays as it is."""
    norm = HeadNorm(q=weight("qn", 8), k=weight("kn", 8), eps=1e-6)
    rotary = Rotary(inverse_frequencies=(1.0, 0.5, 0.25, 0.125))
    both = RopeAndCache(
        qkv=value("qkv", 64), layer=0, shape=SHAPE, rotary=rotary, norm=norm, out=value("q", 32)
    )
    alone = replace(
        both, qkv=value("raw", 32), norm=replace(norm, k=None), keys=False, out=value("other", 32)
    )
    rows = random(3, 64)
    step = step_with({both.qkv: rows, alone.qkv: rows[:, :32]}, start=5, qn=random(8), kn=random(8))
    alone.reference(step)
    assert np.isnan(step.cache.keys[0]).all()
    both.reference(step)
    np.testing.assert_array_equal(step.read(alone.out), step.read(both.out))
    with pytest.raises(AssertionError, match="weights of q or k alone"):
        replace(both, norm=replace(norm, k=None))


@pytest.mark.parametrize("span", [CAUSAL, Window(1), Window(4), Chunk(4), Chunk(7)], ids=str)
def test_attention(span: Span) -> None:
    """Six queries after four cached positions, against torch with an explicit mask."""
    q, k, v = random(6, 32), random(10, 2, 8), random(10, 2, 8)
    op = Attention(q=value("q", 32), layer=0, shape=SHAPE, scale=0.3, span=span, out=value("out", 32))
    step = step_with({op.q: q}, start=4)
    step.cache.keys[0][1, :10], step.cache.values[0][1, :10] = k, v
    op.reference(step)
    at, to = np.arange(4, 10)[:, None], np.arange(10)[None, :]
    match span:
        case Window(n):
            mask = (to <= at) & (to > at - n)
        case Chunk(n):
            mask = (to <= at) & (to // n == at // n)
        case _:
            mask = to <= at
    want = fn.scaled_dot_product_attention(
        torch.tensor(q).reshape(6, 4, 8).transpose(0, 1),
        torch.tensor(k).transpose(0, 1),
        torch.tensor(v).transpose(0, 1),
        attn_mask=torch.tensor(mask),
        scale=0.3,
        enable_gqa=True,
    )
    np.testing.assert_allclose(step.read(op.out), want.transpose(0, 1).reshape(6, 32), rtol=1e-5, atol=1e-6)


def test_rounding_is_torchs() -> None:
    """To nearest, ties to even, at the edges too."""
    bits = np.concatenate(
        [RNG.integers(0, 2**32, 4000), np.arange(8) << 14, [0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF]]
    )
    x = bits.astype(np.uint32).view(np.float32)
    want = torch.tensor(x).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(rounded(x, DType.BF16), want)
    assert rounded(x, DType.F32).tobytes() == x.tobytes()


def test_widening() -> None:
    x = rounded(random(10), DType.BF16)
    np.testing.assert_array_equal(widened(to_bf16(x)), x)


def executor() -> tuple[ReferenceExecutor, SlotState, StepInputs]:
    config = FAMILIES["mistral"]()
    program, tensors = load_program(config), random_tensors(config, 0)
    runner = ReferenceExecutor(program, reference_weights(program, tensors.__getitem__), slots=3, max_len=64)
    state = SlotState.allocate(LIMITS, program.vocab_size)
    state.sampling["repetition_penalty"] = 1
    state.tokens[0, :5], state.tokens[2, :7] = range(10, 15), range(30, 37)
    return runner, state, StepInputs.allocate(LIMITS)


def fill(inputs: StepInputs, chunks: list[tuple[int, int, int]], kind: int = SAMPLE) -> None:
    """Chunks as (slot, start, length), with an output row for the last token of each."""
    end = 0
    for i, (slot, start, length) in enumerate(chunks):
        end += length
        inputs.chunk_slot[i], inputs.chunk_start[i], inputs.chunk_len[i] = slot, start, length
        inputs.row_token[i], inputs.row_slot[i] = end - 1, slot
        inputs.row_position[i], inputs.row_kind[i] = start + length - 1, kind
    inputs.num_chunks, inputs.num_tokens, inputs.num_rows = len(chunks), end, len(chunks)


def test_sampled_tokens_feed_the_next_step() -> None:
    """Two sequences batched give what each gives alone, greedy."""
    runner, state, inputs = executor()
    fill(inputs, [(2, 0, 7), (0, 0, 5)])
    first = runner.step(inputs, state).outputs
    assert first is not None
    assert state.tokens[2, 7] == first.tokens[0]
    assert state.tokens[0, 5] == first.tokens[1]
    fill(inputs, [(0, 5, 1), (2, 7, 1)])
    runner.step(inputs, state)
    alone, other, inputs = executor()
    fill(inputs, [(2, 0, 7)])
    alone.step(inputs, other)
    fill(inputs, [(2, 7, 1)])
    alone.step(inputs, other)
    assert other.tokens[2, :9].tolist() == state.tokens[2, :9].tolist()


def test_scoring_leaves_tokens_alone() -> None:
    runner, state, inputs = executor()
    before = state.tokens.copy()
    fill(inputs, [(2, 0, 4)], SCORE)
    outputs = runner.step(inputs, state).outputs
    assert outputs is not None
    assert outputs.tokens[0] == before[2, 4]
    assert outputs.logprobs[0] < 0
    np.testing.assert_array_equal(state.tokens, before)


def test_embedding_gives_the_hidden_state_and_draws_nothing() -> None:
    runner, state, inputs = executor()
    before = state.tokens.copy()
    fill(inputs, [(2, 0, 7), (0, 0, 5)], EMBED)
    inputs.row_kind[1] = SCORE
    step = runner.step(inputs, state)
    assert step.outputs is not None
    assert runner.program.head is not None
    np.testing.assert_array_equal(step.outputs.hidden, step.read(runner.program.head.x))
    assert step.outputs.tokens[1] == before[0, 5]
    np.testing.assert_array_equal(state.tokens, before)
