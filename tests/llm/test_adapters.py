"""Adapters of the Python API: against the model into which their factors were merged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from firelane.engine.adapters.peft import read_adapter
from firelane.errors import RequestError, UsageError
from firelane.llm import LLM, SamplingParams
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.adapters import adaptable_modules
from tests.models.families import make_checkpoint

PROMPT = [(7 * i) % 250 for i in range(40)]
FAMILIES = ("llama3", "gemma3", "phi3", "qwen3_moe", "granite_hybrid")
TOLERANCE = 2e-3
"""The largest difference of log-probabilities: two factors round otherwise than their product."""


def write_adapter(path: Path, model: Path, seed: int) -> Path:
    rng, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for module, (n, k) in adaptable_modules(load_program(read_config(model))).items():
        a, b = rng.standard_normal((3, k)) * 0.3 * k**-0.5, rng.standard_normal((n, 3))
        tensors[f"base_model.model.{module}.lora_A.weight"] = a.astype(np.float32)
        tensors[f"base_model.model.{module}.lora_B.weight"] = b.astype(np.float32)
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 6}))
    return path


def numbers(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def merged(path: Path, model: Path, adapter: Path) -> Path:
    """A copy of the model, whose weights have the adapter's changes."""
    path.mkdir()
    for file in model.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(model / "model.safetensors")
    for module, factors in read_adapter(adapter).tensors.items():
        change = np.float32(factors.scale) * (numbers(factors.b) @ numbers(factors.a))
        tensors[f"{module}.weight"] = tensors[f"{module}.weight"] + change
    save_file(tensors, path / "model.safetensors")
    return path


def logprobs(llm: LLM, lora: str = "") -> np.ndarray:
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0.0, lora=lora)
    (answer,) = llm.generate([PROMPT], params)
    assert answer.prompt_logprobs is not None
    return np.array(
        [one[token].logprob for one, token in zip(answer.prompt_logprobs, PROMPT, strict=True) if one]
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_is_the_merged_model(tmp_path: Path, cache_dir: Path, family: str) -> None:
    model = make_checkpoint(family, "float32", tmp_path / "base")
    adapters = {name: write_adapter(tmp_path / name, model, seed) for seed, name in enumerate(("a", "b"))}
    loras = tuple((name, str(path)) for name, path in adapters.items())
    options = {"cache_dir": cache_dir, "max_num_seqs": 2}
    with LLM(str(model), loras=loras, **options) as llm:
        found = {name: logprobs(llm, name) for name in ("", "a", "b")}
        np.testing.assert_array_equal(logprobs(llm, "a"), found["a"])
        with pytest.raises(RequestError, match="adapter c is not served"):
            logprobs(llm, "c")
    with LLM(str(model), **options) as llm:
        np.testing.assert_array_equal(logprobs(llm), found[""])
    for name, path in adapters.items():
        with LLM(str(merged(tmp_path / f"merged_{name}", model, path)), **options) as llm:
            want = logprobs(llm)
        assert np.abs(want - found[""]).max() > 20 * TOLERANCE
        np.testing.assert_allclose(found[name], want, rtol=0, atol=TOLERANCE)


def test_ranks_serve_no_adapters(tmp_path: Path, cache_dir: Path) -> None:
    model = make_checkpoint("llama3", "float32", tmp_path / "base")
    adapter = write_adapter(tmp_path / "a", model, 1)
    with pytest.raises(UsageError, match="--lora"):
        LLM(str(model), loras=(("a", str(adapter)),), tensor_parallel_size=2, threads=2, cache_dir=cache_dir)
