"""Each family's Program, run by the NumPy reference, against transformers on the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from families import FAMILIES, MAX_LEN, VOCAB_SIZE, WINDOW, make_checkpoint

from firelane.backends.contract import SCORE, SlotState, StepInputs, StepLimits
from firelane.models.config import read_config
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.program.reference import ReferenceExecutor, reference_weights
from firelane.weights.checkpoint import Checkpoint

LENGTHS = [1, 2, 7, WINDOW, WINDOW + 1, 100]
# Largest difference of two logits, which spread over about +-10. float32 differs by the order of sums alone. bf16 keeps 8
# bits of mantissa (relative error 2^-9 a rounding) in some 8 roundings a layer.
F32_BOUND, BF16_BOUND = 1e-4, 0.15
LIMITS = StepLimits(
    max_num_seqs=2, max_num_batched_tokens=256, max_output_rows=256, max_model_len=MAX_LEN, block_size=16, num_blocks=32
)


def logits_of(program: Program, directory: Path, tokens: np.ndarray, chunks: list[int]) -> np.ndarray:
    """Logits at every position, computed in steps of `chunks` tokens."""
    executor = ReferenceExecutor(
        program, reference_weights(program, Checkpoint.open(directory).tensor), slots=2, max_len=MAX_LEN
    )
    state, inputs = SlotState.allocate(LIMITS), StepInputs.allocate(LIMITS)
    state.tokens[1, : len(tokens)] = tokens
    state.sampling["repetition_penalty"] = 1
    logits, start = [], 0
    for n in chunks:
        inputs.num_chunks, inputs.num_tokens, inputs.num_rows = 1, n, n
        inputs.chunk_slot[0], inputs.chunk_start[0], inputs.chunk_len[0] = 1, start, n
        inputs.row_token[:n], inputs.row_slot[:n] = range(n), 1
        inputs.row_position[:n], inputs.row_kind[:n] = range(start, start + n), SCORE
        step = executor.step(inputs, state)
        logits.append(next(values for value, values in step.values.items() if value.name == "logits"))
        start += n
    return np.concatenate(logits)


def oracle_logits(directory: Path, tokens: np.ndarray) -> np.ndarray:
    """transformers in float32; asserts that it finds exactly its own tensors in the checkpoint."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        return model.eval()(torch.tensor(tokens[None].astype(np.int64))).logits[0].numpy()


def prompt(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, VOCAB_SIZE, length).astype(np.int32)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    base = tmp_path_factory.mktemp("families")
    return {
        (name, dtype): make_checkpoint(name, dtype, base / f"{name}-{dtype}")
        for name in FAMILIES
        for dtype in ("float32", "bfloat16", "float16")
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("dtype", "bound"), [("float32", F32_BOUND), ("float16", F32_BOUND), ("bfloat16", BF16_BOUND)]
)
def test_logits(checkpoints: dict[tuple[str, str], Path], family: str, dtype: str, bound: float) -> None:
    directory = checkpoints[family, dtype]
    program = load_program(read_config(directory))
    for length in LENGTHS:
        tokens = prompt(length)
        want = oracle_logits(directory, tokens)
        got = logits_of(program, directory, tokens, [length])
        assert np.ptp(want) > 8  # else the bounds mean nothing
        np.testing.assert_allclose(got, want, rtol=0, atol=bound, err_msg=f"{family} {dtype} {length}")
