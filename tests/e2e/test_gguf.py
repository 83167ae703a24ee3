"""A GGUF file, served as it is: the tokens of the checkpoint of its dequantised weights."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from firelane import LLM, SamplingParams
from firelane.program.recipes import widened
from firelane.weights.gguf.file import bf16_bits
from tests.models import toy_dense
from tests.models.families import make_checkpoint, random_tensors
from tests.models.gguf_writer import write_gguf
from tests.weights.files import write_safetensors

PROMPT = "The quick brown fox"
KIND = gguf.GGMLQuantizationType.Q8_0


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    """A file of 8 bits, and a directory of bf16 with what it stands for."""
    config = toy_dense.llama2() | {
        "torch_dtype": "bfloat16", "hidden_size": 96, "num_attention_heads": 6, "intermediate_size": 160,
    }  # fmt: skip
    tensors = {
        name: widened(bf16_bits(values)) if values.ndim == 1 else values
        for name, values in random_tensors(config, 0).items()
    }
    write_gguf(
        tmp_path / "toy-Q8_0.gguf", "llama", config, tensors, fields={}, in_pairs=True,
        quantise=lambda values: (gguf.quants.quantize(values, KIND), KIND),
    )  # fmt: skip
    twin = make_checkpoint("llama2", "bfloat16", tmp_path / "twin")
    (twin / "config.json").write_text(json.dumps(config))
    write_safetensors(twin / "model.safetensors", _dequantised(tensors), "bfloat16")
    return tmp_path / "toy-Q8_0.gguf", twin


def _dequantised(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: gguf.quants.dequantize(gguf.quants.quantize(values, KIND), KIND) if values.ndim > 1 else values
        for name, values in tensors.items()
    }


def test_same_tokens_as_the_dequantised_checkpoint(models: tuple[Path, Path]) -> None:
    """And the same log-probabilities, to the last bit."""
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=3, ignore_eos=True)
    first, second = (LLM(str(model)).generate(PROMPT, params)[0].outputs[0] for model in models)
    assert first.token_ids == second.token_ids
    assert first.logprobs == second.logprobs
