"""A GGUF file, served as it is: the tokens of the checkpoint of its dequantised weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from firelane import LLM, SamplingParams
from firelane.backends.cpu.executor import CpuExecutor
from firelane.program.recipes import widened
from firelane.weights.formats.bf16 import bf16_bits
from tests.models import toy_dense
from tests.models.families import make_checkpoint, random_tensors
from tests.models.gguf_writer import write_gguf
from tests.weights.files import write_safetensors

pytestmark = pytest.mark.usefixtures("unoptimised")
PROMPT = "The quick brown fox"
Kind = gguf.GGMLQuantizationType
KINDS = [Kind.Q4_K, Kind.Q6_K, Kind.Q8_0, Kind.Q5_K, Kind.Q4_0, Kind.Q3_K, Kind.Q2_K, Kind.Q4_1, Kind.Q5_0]
KINDS += [Kind.IQ4_XS, Kind.Q5_1, Kind.IQ4_NL]
HALVES = {Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}
HALVES |= {Kind.IQ4_XS: (0,), Kind.IQ4_NL: (0,)}
"""The offsets of float16 numbers in blocks of the types that the library does not write."""


def quantised(values: np.ndarray, kind: Kind) -> np.ndarray:
    """Near the values where the library writes the type; else blocks of random codes."""
    if kind not in HALVES:
        return gguf.quants.quantize(values, kind)
    size, nbytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(values.size)
    blocks = rng.integers(0, 256, (values.size // size, nbytes), dtype=np.uint8)
    for at in HALVES[kind]:
        scales = (rng.random(len(blocks)) * 4e-4).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(len(values), -1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file of all types, and a directory of bf16 with what it stands for."""
    tmp_path = tmp_path_factory.mktemp("gguf")
    config = toy_dense.llama2() | {
        "torch_dtype": "bfloat16", "hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 512,
        "num_hidden_layers": 3,
    }  # fmt: skip
    tensors = random_tensors(config, 0)
    kinds = {name: KINDS[i % len(KINDS)] for i, name in enumerate(n for n in tensors if tensors[n].ndim > 1)}
    numbers: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if values.ndim == 1:
            tensors[name] = numbers[name] = widened(bf16_bits(values))
    turn = iter(kinds)

    def quantise(values: np.ndarray) -> tuple[np.ndarray, Kind]:
        name = next(turn)
        data = quantised(values, kinds[name])
        numbers[name] = gguf.quants.dequantize(data, kinds[name])
        return data, kinds[name]

    write_gguf(tmp_path / "toy.gguf", "llama", config, tensors, fields={}, quantise=quantise)
    twin = make_checkpoint("llama2", "bfloat16", tmp_path / "twin")
    (twin / "config.json").write_text(json.dumps(config))
    for name, values in numbers.items():
        for part in ("q_proj", "k_proj"):
            if part in name:  # rows are stored in pairs
                numbers[name] = values.reshape(8, -1, 2, 256).swapaxes(1, 2).reshape(values.shape)
    write_safetensors(twin / "model.safetensors", numbers, "bfloat16")
    return tmp_path / "toy.gguf", twin


@pytest.fixture(scope="module")
def own_cache(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the kernels of all workers."""
    directory = tmp_path_factory.mktemp("cache")
    (kernel_cache / "kernels").mkdir(exist_ok=True)
    (directory / "kernels").symlink_to(kernel_cache / "kernels")
    return directory


@pytest.fixture(scope="module")
def llms(models: tuple[Path, Path], own_cache: Path) -> Iterator[list[LLM]]:
    """Models of the file and of the directory. They keep no prefixes: each prompt is computed whole."""
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"max_num_seqs": 64, "cache_dir": own_cache, "prefix_cache": False}
        options["activation_dtype"] = "bf16"
        yield [stack.enter_context(LLM(str(model), **options)) for model in models]


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_same_tokens_as_the_dequantised_checkpoint(rows: int, llms: list[LLM]) -> None:
    """And the same log-probabilities, to the last bit: alone, and with so many beside."""
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True)
    prompts = [PROMPT + "!" * i for i in range(rows)]
    first, second = (llm.generate(prompts, params) for llm in llms)
    for one, other in zip(first, second, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert one.outputs[0].logprobs == other.outputs[0].logprobs


def test_codes_are_kept(llms: list[LLM], own_cache: Path) -> None:
    """In memory matrices take what codes and scales take, not what bf16 takes; all of them do, also where one
    weight is made of tensors of several types."""
    executor = llms[0]._engine.executor
    assert isinstance(executor, CpuExecutor)
    assert next(path.name for path in (own_cache / "gguf").iterdir()).startswith("toy-")
    matrices = [w for w in executor.layout.program.weights if w.is_matrix]
    assert set(executor.layout.forms) == {w.name for w in matrices}
    assert all(format_.grouping for format_ in executor.layout.forms.values())
