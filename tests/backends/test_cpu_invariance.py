"""A sequence's tokens and log-probabilities do not depend on its batch, its chunks, its blocks or the
number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from firelane.contract import CAUSAL
from firelane.contract import Chunk as ChunkSpan
from firelane.program.cache_codes import CacheCode
from firelane.program.cache_rewrite import with_cache_code
from firelane.program.ops import HeadShape
from firelane.program.values import DType
from tests.backends.cpu_harness import Chunk, Machine, limits, machine, small_spec, with_spans
from tests.models.dense import dense_program
from tests.models.experts import EXPERT_SPECS, experts_program
from tests.models.latents import CHOSEN_SPECS, LATENT_SPECS, latent_program
from tests.models.recurrent import RECURRENT_SPECS, recurrent_program

SEQUENCES = 9
OUTPUTS = 6

SPECS = {
    "bf16": small_spec(),
    "bf16-window-norms": small_spec(windows=(24, 0), qk_norm=True, qkv_bias=True),
    "bf16-mha": small_spec(
        heads=HeadShape(heads=2, kv_heads=2, head_dim=32, value_dim=48), mlp_bias=True, output_bias=True
    ),
    "f32": small_spec(dtype=DType.F32, windows=(0, 40)),
    "bf16-int8": small_spec(heads=HeadShape(heads=6, kv_heads=2, head_dim=48, code=CacheCode.INT8)),
    "bf16-latent-fp8": with_cache_code(latent_program(LATENT_SPECS["bf16-latent"]), CacheCode.FP8),
    "bf16-latent-chosen": latent_program(CHOSEN_SPECS["bf16-latent-chosen"]),
    "bf16-chunks": with_spans(dense_program(small_spec()), (ChunkSpan(40), CAUSAL)),
    "bf16-experts": experts_program(EXPERT_SPECS["bf16-experts"]),
    "bf16-recurrent": recurrent_program(RECURRENT_SPECS["bf16-recurrent"]),
    "f32-recurrent": recurrent_program(RECURRENT_SPECS["f32-recurrent"]),
}


@pytest.fixture(scope="module", params=SPECS)
def driven(request, kernel_cache) -> Iterator[Machine]:
    m = machine(SPECS[request.param], kernel_cache)
    yield m
    m.executor.release()


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, 331, n).tolist() for n in (1, 2, 15, 16, 17, 63, 64, 65, 150)]


PROMPTS = prompts()


class Trace:
    """The tokens and the bits of the log-probabilities of each sequence, as they come."""

    def __init__(self) -> None:
        self.rows: dict[int, list[bytes]] = {i: [] for i in range(SEQUENCES)}

    def add(self, sequence: int, outputs, row: int) -> None:
        top: NDArray[np.int32] = outputs.top_ids[row, :5]
        parts = (outputs.tokens[row], outputs.logprobs[row], top, outputs.top_logprobs[row, :5])
        self.rows[sequence].append(b"".join(np.asarray(p).tobytes() for p in parts))


def poison(m: Machine) -> None:
    """Fill the whole cache and all recurrent states with NaN: what earlier owners left must not matter."""
    m.executor.pages[:] = 0xFF
    m.executor.states[:] = 0xFF


def run_alone(m: Machine, sequence: int) -> list[bytes]:
    trace, prompt = Trace(), PROMPTS[sequence]
    m.greedy(0, prompt)
    m.give_blocks(0, range(m.executor.limits.blocks_per_seq))
    at = 0
    for length in [len(prompt)] + [1] * (OUTPUTS - 1):
        outputs = m.step([Chunk(0, at, length)])
        trace.add(sequence, outputs, 0)
        at += length
    return trace.rows[sequence]


@pytest.fixture(scope="module")
def alone(driven: Machine) -> dict[int, list[bytes]]:
    poison(driven)
    return {i: run_alone(driven, i) for i in range(SEQUENCES)}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_schedules_give_the_same_bits(driven, alone, data) -> None:
    """Random slots, blocks, chunk sizes and batches; every sequence's bytes equal those of its run alone."""
    poison(driven)
    slots = data.draw(st.permutations(range(driven.executor.limits.max_num_seqs)))
    shuffled = np.random.default_rng(data.draw(st.integers(0, 1000))).permutation(700)
    for i, prompt in enumerate(PROMPTS):
        driven.greedy(slots[i], prompt)
        driven.give_blocks(slots[i], shuffled[i * 20 : (i + 1) * 20].tolist())
    done = dict.fromkeys(range(SEQUENCES), 0)
    trace = Trace()
    while any(len(r) < OUTPUTS for r in trace.rows.values()):
        chunks, owners = [], []
        budget = driven.executor.limits.max_num_batched_tokens
        for i in data.draw(st.permutations(range(SEQUENCES))):
            left = len(PROMPTS[i]) - done[i]
            if len(trace.rows[i]) >= OUTPUTS or budget == 0:
                continue
            length = 1 if left <= 0 else min(data.draw(st.sampled_from([1, 2, 7, 16, 50, 200])), left, budget)
            done[i] += length
            sample = done[i] >= len(PROMPTS[i])
            chunks.append(Chunk(slots[i], done[i] - length, length, sample=sample))
            owners += [i] if sample else []
            budget -= length
        outputs = driven.step(chunks)
        for row, i in enumerate(owners):
            trace.add(i, outputs, row)
    assert trace.rows == alone


@pytest.mark.parametrize("name", ["bf16", "bf16-recurrent"])
def test_thread_counts_and_block_sizes_give_the_same_bits(kernel_cache, name: str) -> None:
    results = []
    for threads, block_size in ((1, 16), (2, 64), (3, 64)):
        sizes = limits(block_size=block_size)
        m = machine(SPECS[name], kernel_cache, threads=threads, sizes=sizes)
        results.append(run_alone(m, SEQUENCES - 1))
        m.executor.release()
    assert results[0] == results[1] == results[2]


def assert_others_stand(m: Machine, before: NDArray[np.uint8], *, changed: int) -> None:
    """All recurrent states but one are as they were."""
    size = m.executor.limits.state_bytes
    for index in range(m.executor.limits.num_states):
        if index != changed:
            at = slice(index * size, (index + 1) * size)
            np.testing.assert_array_equal(m.executor.states[at], before[at])


def test_prefix_blocks_of_another_sequence_give_the_same_bits(driven, alone) -> None:
    """A sequence that starts on blocks which another computed, and on a snapshot of its state, continues with
    the same bytes."""
    poison(driven)
    prompt, snapshot = PROMPTS[-1], driven.executor.limits.max_num_seqs
    driven.greedy(3, prompt)
    driven.give_blocks(3, range(100, 120))
    driven.step([Chunk(3, 0, 128, state_save=snapshot)])
    kept = driven.executor.states.copy()
    driven.greedy(4, prompt)
    driven.give_blocks(4, [*range(100, 108), *range(200, 212)])
    outputs = driven.step([Chunk(4, 128, len(prompt) - 128, state_from=snapshot)])
    assert_others_stand(driven, kept, changed=4)
    trace = Trace()
    trace.add(SEQUENCES - 1, outputs, 0)
    assert trace.rows[SEQUENCES - 1][0] == alone[SEQUENCES - 1][0]
