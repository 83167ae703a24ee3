"""Whole steps of small programs, every kernel in the interpreter: against the NumPy reference, and against
themselves in other batches, chunks, buckets and forms of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from cuda_harness import Machine, as_float, limits, machine

from firelane.contract import CAUSAL, EMBED, SlotState, Span, Window, kept_from
from firelane.contract import Chunk as ChunkSpan
from firelane.program.ops import HeadShape
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor
from firelane.program.values import DType
from tests.backends.cpu_harness import Chunk, small_spec
from tests.backends.cuda.host_device import poison
from tests.backends.cuda.lean import lean
from tests.models.experts import EXPERT_SPECS, EXPERT_SPECS_HERE, ExpertsSpec, experts_program
from tests.models.latents import LATENT_SPECS, LATENT_SPECS_HERE, LatentSpec, latent_program
from tests.models.options import OPTIONS
from tests.models.recurrent import RECURRENT_SPECS, recurrent_program

# Widths of 128 give the matrices a range, 104 and 200 do not.
WIDE = small_spec(
    vocab_size=200, hidden_size=128, mlp_size=256, heads=HeadShape(heads=4, kv_heads=2, head_dim=32)
)
SPECS = {
    "bf16": WIDE,
    "bf16-odd": small_spec(windows=(0, 20), qkv_bias=True, output_bias=True, mlp_bias=True),
    "bf16-norms-tied": replace(WIDE, qk_norm=True, tied_embeddings=True),
    "f32": small_spec(dtype=DType.F32, windows=(20, 0), qk_norm=True, mlp_bias=True),
}
# Largest difference of two logits, which spread over some units: float32 differs by the order of sums, bf16
# by roundings that fall the other way.
BOUNDS = {DType.F32: 2e-4, DType.BF16: 0.15}
LATENTS = [*LATENT_SPECS, *LATENT_SPECS_HERE]
EXPERTS = [*EXPERT_SPECS, *EXPERT_SPECS_HERE]
STALE = 0x7F7F7F7F
STEPS = [
    [Chunk(0, 0, 21), Chunk(2, 0, 4)],
    [Chunk(2, 4, 1), Chunk(0, 21, 6, score=True), Chunk(3, 0, 2)],
    [Chunk(0, 27, 1), Chunk(2, 5, 1), Chunk(3, 2, 1)],
]


@pytest.fixture(autouse=True, scope="module")
def _lean():
    with lean():
        yield


@pytest.mark.parametrize(("name", "coded"), [*((name, False) for name in SPECS), ("bf16-norms-tied", True)])
def test_logits_are_those_of_the_reference(name: str, coded: bool) -> None:
    check_logits(machine(SPECS[name], coded=coded))


@pytest.mark.parametrize(("name", "dtype"), [*((n, DType.F32) for n in OPTIONS), ("sandwiched", DType.BF16)])
def test_options_of_blocks(name: str, dtype: DType) -> None:
    check_logits(machine(OPTIONS[name](dtype)), STEPS[:2])


@pytest.mark.parametrize("spec", [*LATENT_SPECS.values(), *LATENT_SPECS_HERE.values()], ids=LATENTS)
def test_latent_attention(spec: LatentSpec) -> None:
    check_logits(machine(latent_program(spec)), STEPS[:2])


def test_recurrent_layers() -> None:
    check_logits(machine(recurrent_program(RECURRENT_SPECS["bf16-recurrent"])), STEPS[:2])


@pytest.mark.parametrize("spec", [*EXPERT_SPECS.values(), *EXPERT_SPECS_HERE.values()], ids=EXPERTS)
def test_layers_with_experts(spec: ExpertsSpec) -> None:
    check_logits(machine(experts_program(spec)), STEPS[:2])


SMALL_EXPERTS = replace(EXPERT_SPECS["bf16-experts"], hidden_size=128, width=128, routes=({},))
KINDS = {
    "experts": experts_program(SMALL_EXPERTS),
    "latents": latent_program(replace(LATENT_SPECS["bf16-latent"], spans=(CAUSAL,))),
    "recurrent": recurrent_program(RECURRENT_SPECS["bf16-recurrent"]),
}


@pytest.mark.parametrize("program", KINDS.values(), ids=KINDS)
def test_layers_of_every_kind_give_the_same_bits_in_any_company_and_form(program: Program) -> None:
    """The number of rows that an expert gets varies between steps, from none to all."""
    found: list[list[bytes]] = []
    token_by_token = [[Chunk(0, p, 1), Chunk(1, p, 1)] for p in range(4)]
    for coded, steps in ((False, [[Chunk(1, 0, 4)]]), (True, token_by_token)):
        m = machine(program, coded=coded)
        prompts(m)
        found.append(bits(m, steps, 1))
    assert found[0] == found[1]


def check_logits(m: Machine, steps: Sequence[list[Chunk]] = STEPS) -> None:
    program = m.weights.program
    reference = ReferenceExecutor(program, m.weights.values, slots=6, max_len=330)
    prompts(m)
    other = copied(m.executor.state)
    logits = next(value for op in program.ops for value in op.outputs if value.name == "logits")
    for chunks in steps:
        m.step(chunks)
        step = reference.begin(m.inputs, other)
        for op in program.ops:
            op.reference(step)
        found = as_float(m.executor.memory.values[logits])[: m.inputs.num_rows, : logits.width]
        assert np.abs(found - step.values[logits]).max() < BOUNDS[program.ops[1].out.dtype]
        assert np.abs(step.values[logits]).max() > 0.5
        other.tokens[:] = m.executor.state.tokens  # where they differ by rounding, go on from ours


def prompts(m: Machine) -> None:
    rng = np.random.default_rng(7)
    for slot in range(4):
        m.greedy(slot, rng.integers(0, m.executor.vocab_size, 90).tolist())
        m.executor.state.sampling["prompt_len"][slot] = 5


def copied(state: SlotState) -> SlotState:
    return SlotState(**{name: array.copy() for name, array in vars(state).items()})


def bits(m: Machine, chunks: list[list[Chunk]], slot: int) -> list[bytes]:
    """Return the bytes of the hidden state at every position of `slot`."""
    found: list[bytes] = []
    for step in chunks:
        inputs = m.fill([replace(c, score=c.slot == slot) for c in step])
        inputs.row_kind[: inputs.num_rows] = EMBED
        m.executor.submit(inputs)
        outputs = m.executor.wait()
        mine = inputs.row_slot[: inputs.num_rows] == slot
        found += [row.tobytes() for row in outputs.hidden[: inputs.num_rows][mine]]
    return found


@pytest.fixture(scope="module")
def alone() -> list[bytes]:
    """The hidden states of 7 positions, computed in one step."""
    m = machine(WIDE)
    prompts(m)
    return bits(m, [[Chunk(1, 0, 7)]], 1)


@pytest.mark.parametrize("coded", [False, True], ids=["plain", "coded"])
@pytest.mark.parametrize(
    ("steps", "block_size"),
    [
        ([[Chunk(1, 0, 7)]], 64),
        ([[Chunk(0, 0, 7), Chunk(1, 0, 5)], [Chunk(1, 5, 2), Chunk(0, 7, 1), Chunk(3, 0, 4)]], 16),
        ([[Chunk(1, p, 1), Chunk(0, p, 1)] for p in range(7)], 64),
    ],
    ids=["alone", "in company", "token by token"],
)
def test_hidden_states_are_the_same_bits(alone, steps, block_size: int, coded: bool) -> None:
    sizes = limits(block_size=block_size, num_blocks=2560 // block_size)
    m = machine(WIDE, sizes=sizes, coded=coded)
    prompts(m)
    m.shuffle(3)
    assert bits(m, steps, 1) == alone


def test_the_token_of_a_long_context_is_the_same_decoded_or_in_a_chunk() -> None:
    """Two splits of attention: what lies between them is folded in the same way."""
    m = machine(replace(WIDE, windows=(0,)), sizes=limits(max_num_batched_tokens=260))
    m.executor.state.tokens[1, :259] = np.arange(259) % 199
    m.step([Chunk(1, 0, 256, sample=False)])
    together = bits(m, [[Chunk(1, 256, 3)]], 1)
    assert bits(m, [[Chunk(1, p, 1)] for p in (256, 257, 258)], 1) == together


def test_a_step_without_rows_or_beyond_its_bucket_writes_nothing_else() -> None:
    m = machine(WIDE)
    prompts(m)
    before = m.executor.state.tokens.copy()
    m.step([Chunk(1, 0, 9, sample=False)])
    assert (m.executor.state.tokens == before).all()
    m.step([Chunk(1, 9, 1)])
    changed = np.argwhere(m.executor.state.tokens != before).tolist()
    assert changed in ([[1, 10]], [])


@pytest.mark.parametrize(
    ("block_size", "spans", "prompt"),
    [(16, (Window(20), CAUSAL, ChunkSpan(32)), 86), (64, (ChunkSpan(32), Window(20)), 86)],
    ids=["three groups", "long blocks"],
)
def test_pages_behind_a_span_are_never_read(block_size: int, spans: tuple[Span, ...], prompt: int) -> None:
    """They go to others, who leave anything in them, and their entries become stale."""
    sizes = limits(block_size=block_size, num_blocks=4 * 320 // block_size, max_num_batched_tokens=prompt)
    found = []
    for is_released in (False, True):
        m = machine(replace(WIDE, windows=(0,) * len(spans)), sizes=sizes, spans=spans)
        m.executor.state.tokens[0, :120] = np.arange(120) % 199
        hidden = []
        for chunk in (Chunk(0, 0, prompt), Chunk(0, prompt, 1), Chunk(0, prompt + 1, 7)):
            if is_released:
                release_pages(m, slot=chunk.slot, position=chunk.start)
            hidden.append(last_hidden(m, chunk))
        found.append(hidden)
        released = (m.executor.state.block_tables[:, 0] == STALE).any(1).tolist()
        assert released == [is_released and span != CAUSAL for span in spans]
    assert found[0] == found[1]


def last_hidden(m: Machine, chunk: Chunk) -> bytes:
    inputs = m.fill([chunk])
    inputs.row_kind[0] = EMBED
    m.executor.submit(inputs)
    hidden = m.executor.wait().hidden[0]
    assert np.isfinite(hidden).all()
    return hidden.tobytes()


def release_pages(m: Machine, *, slot: int, position: int) -> None:
    """Poison what no step from `position` on may read."""
    size = m.executor.limits.block_size
    for table, span in zip(m.executor.state.block_tables, m.executor.limits.spans, strict=True):
        for index in range(kept_from(span, position) // size):
            if table[slot, index] < m.executor.limits.num_blocks:
                poison(m.executor.memory.pages.pool[int(table[slot, index])])
            table[slot, index] = STALE
