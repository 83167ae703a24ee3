"""--weights int8 and int4, --dtype: what is read, what it answers, and under which name it is kept."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from firelane import LLM, SamplingParams
from firelane.engine.process.identity import model_identity
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.errors import CheckpointError, UsageError
from firelane.models.registry import load_program
from firelane.program.recipes import widened
from firelane.program.values import DType
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.formats import Format
from firelane.weights.quantizing.integers import quantize_integers
from firelane.weights.quantizing.schemes import WHILE_PACKING
from firelane.weights.quantizing.targets import find_targets
from firelane.wire.frames import Loading
from tests.models.families import FAMILIES, config_of, make_checkpoint, random_tensors
from tests.models.toy_config import Config
from tests.weights.files import write_safetensors
from tests.weights.quantized.test_quantized import CONFIG, write_quantized

DOWN = "model.layers.0.mlp.down_proj.weight"


def write(directory: Path, dtype: str, config: Config = CONFIG) -> Path:
    make_checkpoint("qwen3", dtype, directory)  # its tokenizer
    (directory / "config.json").write_text(json.dumps(config | {"torch_dtype": dtype}))
    write_safetensors(directory / "model.safetensors", random_tensors(config, 0), dtype)
    return directory


def opened(directory: Path, weights: str) -> Checkpoint:
    checkpoint = Checkpoint.open(directory)
    program = load_program(json.loads((directory / "config.json").read_text()), dtype=DType.BF16)
    fitted(program, checkpoint, rounds=True, quantize=WHILE_PACKING.get(weights))
    return checkpoint


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("weights", WHILE_PACKING)
def test_matrices_are_those_of_the_codes(weights: str, dtype: str, tmp_path: Path) -> None:
    """Codes are made of the numbers that are stored, before any rounding to bf16."""
    plain, found = Checkpoint.open(write(tmp_path, dtype)), opened(tmp_path, weights)
    expected = quantize_integers(widened(plain.tensor(DOWN)), WHILE_PACKING[weights])
    np.testing.assert_array_equal(found.tensor(DOWN), bf16_bits(expected.values()))
    np.testing.assert_array_equal(found.rows(DOWN, 7, 31), bf16_bits(expected.values())[7:31])
    np.testing.assert_array_equal(found.codes(DOWN, 7, 31).codes, expected.codes[7:31])
    assert found.format(DOWN) is (Format.PANEL_INT4_BF16 if weights == "int4" else Format.PANEL_INT8_BF16)
    for kept in ("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight"):
        values = plain.tensor(kept)
        expected_kept = bf16_bits(widened(values)) if values.ndim == 2 else values
        np.testing.assert_array_equal(found.tensor(kept), expected_kept)
    assert len({plain.fingerprint, found.fingerprint, opened(tmp_path, "bf16").fingerprint}) == 2


def _twin(directory: Path, weights: str, twin: Path) -> Path:
    """The bf16 checkpoint of the numbers that a quantised one stands for."""
    checkpoint = opened(directory, weights)
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names}
    make_checkpoint("qwen3", "bfloat16", twin)
    config = json.loads((directory / "config.json").read_text())
    for key in ("dtype", "torch_dtype"):
        config.pop(key, None)
    (twin / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    write_safetensors(twin / "model.safetensors", tensors, "float32")
    return twin


def answers(model: Path, **options: str) -> tuple[list[int], object]:
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=2, ignore_eos=True)
    with LLM(str(model), **options) as llm:
        output = llm.generate("The quick brown", params)[0].outputs[0]
    return output.token_ids, output.logprobs


@pytest.mark.parametrize(
    ("family", "weights"), [("qwen3", "int4"), ("deepseek_v3", "int8"), ("qwen3_moe", "int4")]
)
def test_same_answers_as_the_twin(family: str, weights: str, tmp_path: Path) -> None:
    """To the last bit; heads that are multiplied the other way round, and experts, too."""
    config = config_of(family, "bfloat16")
    config |= {
        key: 64
        for key in ("hidden_size", "moe_intermediate_size")
        if key in config and family != "deepseek_v3"
    }
    write(tmp_path / "model", "bfloat16", config)
    twin = _twin(tmp_path / "model", weights, tmp_path / "twin")
    first = answers(tmp_path / "model", weights=weights, activation_dtype="bf16")
    assert first == answers(twin)
    assert first != answers(tmp_path / "model")


def test_fp16_is_rounded_where_that_is_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = write(tmp_path / "model", "float16")
    twin = _twin(directory, "bf16", tmp_path / "twin")
    with caplog.at_level(logging.INFO):
        found = answers(directory, dtype="bf16")
    assert "tensors_rounded model=model to=bf16" in caplog.text
    assert "largest_relative_error=0.0039" in caplog.text
    assert found == answers(twin)
    assert found != answers(directory)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_quantised_of_each_family(name: str) -> None:
    """All large matrices of products, but embeddings and routers; only experts that are stored the other way
    round are left."""
    program = load_program(config_of(name, "bfloat16"))
    found = find_targets(program)
    matrices = {p.tensor for w in program.weights if w.is_matrix and w.dtype is DType.BF16 for p in w.pieces}
    left = matrices - {*found.tensors, *found.transposed}
    allowed = (
        "embed_tokens",
        "model.embeddings",
        "router",
        "mlp.gate.",
        "moe.gate.",
        "shared_expert_gate",
        "feed_forward.gate",
        "per_layer",
    )
    assert all(any(part in tensor for part in allowed) for tensor in left), left
    assert all("experts" in tensor for tensor in found.transposed)
    assert bool(found.transposed) == (name in ("gpt_oss", "llama4", "llama4_maverick"))


def test_weights_that_are_quantised_are_refused(tmp_path: Path) -> None:
    directory = write_quantized("int4", tmp_path / "codes")
    with pytest.raises(UsageError, match=r"--weights int4: the weights of .* are quantised already; leave"):
        LLM(str(directory), weights="int4")


def test_numbers_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    directory = write(tmp_path, "float32")
    tensors = random_tensors(CONFIG, 0)
    tensors[DOWN][3, 5] = np.inf
    write_safetensors(directory / "model.safetensors", tensors, "float32")
    with pytest.raises(CheckpointError, match=rf"tensor {DOWN} holds NaN or infinite weights"):
        LLM(str(directory), weights="int8")


def test_a_quantised_model_has_an_identity_and_a_dtype_of_its_own(tmp_path: Path) -> None:
    directory = write(tmp_path, "float16")
    found: dict[str, tuple[str, str]] = {}
    for weights, dtype in (
        ("auto", "auto"),
        ("bf16", "auto"),
        ("auto", "bf16"),
        ("int8", "auto"),
        ("int4", "auto"),
    ):
        config = EngineConfig(
            model_dir=directory,
            cache_dir=tmp_path,
            backend="null",
            max_num_seqs=1,
            weights=weights,
            dtype=dtype,
        )
        loading: list[Loading] = []
        executor = load_executor(config, lambda *_: None, loading.append)
        found[f"{weights} {dtype}"] = model_identity("", executor, config), loading[0].dtype
        executor.release()
    assert [said for _, said in found.values()] == [
        "f32",
        "f32",
        "bf16",
        "bf16 quantised to int8",
        "bf16 quantised to int4",
    ]
    identities = [identity for identity, _ in found.values()]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 4
