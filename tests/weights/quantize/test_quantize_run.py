"""quantize: what a new checkpoint holds, who reads it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file

from firelane.errors import CheckpointError, FirelaneError, OutputError, UsageError
from firelane.models.registry import load_program
from firelane.program.recipes import widened
from firelane.program.values import DType, Weight
from firelane.sources.gguf import model_directory
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.lossless.pack import pack
from firelane.weights.packing.pieces import read_piece
from firelane.weights.quantize.report import NAME, QuantizeReport
from firelane.weights.quantize.run import MARKER, quantize
from firelane.weights.quantizing.parts import quantize_rows
from firelane.weights.quantizing.schemes import SCHEMES
from tests.models.families import FAMILIES, make_checkpoint, random_tensors
from tests.models.gguf_writer import write_gguf
from tests.models.toy_config import Config
from tests.weights.files import write_safetensors
from tests.weights.quantized.test_quantized import CONFIG, write_quantized
from tests.weights.quantizing.test_quantize_on_read import opened, write


def quantized(model: Path, out: Path, name: str = "int8", **options: Any) -> QuantizeReport:
    program = load_program(json.loads((model / "config.json").read_text()), dtype=DType.BF16)
    return quantize(program, model, out, SCHEMES[name], **options)


def read_back(out: Path) -> Checkpoint:
    checkpoint = Checkpoint.open(out)
    fitted(load_program(json.loads((out / "config.json").read_text())), checkpoint)
    return checkpoint


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_read_back(family: str, tmp_path: Path) -> None:
    """Each matrix of a product is the bf16 matrix of its codes, whatever tensor it lay in before."""
    model = make_checkpoint(family, "bfloat16", tmp_path / "model")
    report = quantized(model, tmp_path / "out")
    config = json.loads((model / "config.json").read_text())
    before, after = Checkpoint.open(model), read_back(tmp_path / "out")
    old = {w.name: w for w in fitted(load_program(config), before).weights}
    new = {w.name: w for w in fitted(load_program(config), after).weights}
    named = {f"{matrix.name}.weight" for matrix in report.matrices}
    for name, weight in new.items():
        first, second = (_rows(c, w) for c, w in ((before, old[name]), (after, weight)))
        if not named & set(weight.tensors):
            np.testing.assert_array_equal(first, second, err_msg=name)
        elif all(p.grid.column_stride == 1 and p.width == p.shape[-1] for p in weight.pieces):
            expected = bf16_bits(quantize_rows(first, SCHEMES["int8"]).values)
            np.testing.assert_array_equal(expected, bf16_bits(second), err_msg=name)
    assert 0.005 < report.relative_error < 0.01
    assert len(named) > 7


def _rows(checkpoint: Checkpoint, weight: Weight) -> np.ndarray:
    pieces = (read_piece(checkpoint, piece, range(piece.height)) for piece in weight.pieces)
    return np.concatenate([widened(piece) for piece in pieces])


@pytest.mark.parametrize("name", SCHEMES)
def test_the_formats_own_library_reads_it(name: str, tmp_path: Path) -> None:
    """All of its modules, by the settings in config.json."""
    config = CONFIG | {"hidden_size": 256, "intermediate_size": 384}
    model = write(tmp_path / "model", "float16", config)
    report = quantized(model, tmp_path / "out", name)
    settings = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    scheme = QuantizationConfig.model_validate(settings).config_groups["group_0"]
    reader = BaseCompressor.get_value_from_registry(settings["format"])
    stored, ours = load_file(tmp_path / "out/model.safetensors"), read_back(tmp_path / "out")
    assert len(report.matrices) == 15
    for matrix in report.matrices:
        parts = {k[len(matrix.name) + 1 :]: v for k, v in stored.items() if k.startswith(f"{matrix.name}.")}
        read = reader.decompress(parts, scheme)["weight"].float().numpy()
        np.testing.assert_array_equal(read, widened(ours.tensor(f"{matrix.name}.weight")))
    assert settings["config_groups"]["group_0"]["targets"] == ["Linear", "lm_head"]


def test_numbers_are_those_of_weights_int4(tmp_path: Path) -> None:
    model = write(tmp_path / "model", "float16")
    quantized(model, tmp_path / "out", "int4-g32")
    found, expected = read_back(tmp_path / "out"), opened(model, "int4")
    assert set(found.names) == set(expected.names)
    for name in found.names:
        np.testing.assert_array_equal(found.tensor(name), expected.tensor(name), err_msg=name)
        assert found.format(name) is expected.format(name)


def test_what_stays_and_why(tmp_path: Path) -> None:
    model = write(tmp_path / "model", "float16", CONFIG | {"intermediate_size": 136})
    report = quantized(model, tmp_path / "out", "int4-g32", keep=["lm_head", "layers.0.*.k_proj"])
    why = {kept.name: kept.why for kept in report.kept if kept.why}
    assert why == {
        "model.layers.0.self_attn.k_proj.weight": "--keep layers.0.*.k_proj",
        "model.layers.0.mlp.down_proj.weight": "136 inputs are no multiple of 32",
        "model.layers.1.mlp.down_proj.weight": "136 inputs are no multiple of 32",
        "lm_head.weight": "--keep lm_head",
    }
    config = json.loads((tmp_path / "out/config.json").read_text())
    ignored = {name.removesuffix(".weight") for name in why}
    assert set(config["quantization_config"]["ignore"]) == ignored
    assert config["quantization_config"]["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert config["torch_dtype"] == "bfloat16"
    stored = load_file(tmp_path / "out/model.safetensors")
    kinds = {str(stored[name].dtype) for name in (*why, "model.embed_tokens.weight")}
    assert kinds == {"torch.bfloat16"}
    assert str(stored["model.norm.weight"].dtype) == "torch.float16"
    assert json.loads((tmp_path / "out" / NAME).read_text())["format"] == "int4-g32"


def shards(directory: Path, config: Config = CONFIG) -> Path:
    make_checkpoint("qwen3", "bfloat16", directory)
    (directory / "model.safetensors").unlink()
    (directory / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    tensors, weight_map = random_tensors(config, 0), dict[str, str]()
    for number, names in enumerate((list(tensors)[:9], list(tensors)[9:])):
        file = f"model-{number + 1:05}-of-00002.safetensors"
        write_safetensors(directory / file, {name: tensors[name] for name in names}, "bfloat16")
        weight_map |= dict.fromkeys(names, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    model, out, whole = shards(tmp_path / "model"), tmp_path / "out", tmp_path / "whole"
    expected = quantized(model, whole)

    def stop_in_the_second_file(stage: str, done: float, total: float, unit: str) -> None:
        del stage, unit
        if done > 0.7 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantized(model, out, progress=stop_in_the_second_file)
    assert (out / MARKER).exists()
    assert not (out / "config.json").exists()
    first = (out / "model-00001-of-00002.safetensors").stat()
    with pytest.raises(OutputError, match="holds unfinished work on another model"):
        quantized(model, out, "fp8")
    assert quantized(model, out) == expected
    assert (out / "model-00001-of-00002.safetensors").stat().st_mtime_ns == first.st_mtime_ns
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in whole.iterdir())
    for path in whole.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes(), path.name
    with pytest.raises(OutputError, match="is not empty"):
        quantized(model, out)


def test_threads_make_no_difference(tmp_path: Path) -> None:
    model = write(tmp_path / "model", "bfloat16")
    one, four = (quantized(model, tmp_path / str(n), "mxfp4", threads=n) for n in (1, 4))
    assert one == four
    files = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("1", "4")]
    assert files[0] == files[1]


def test_a_losslessly_packed_model_is_quantised_as_the_original(tmp_path: Path) -> None:
    model = write(tmp_path / "model", "bfloat16")
    pack(model, tmp_path / "packed", threads=1)
    for name in ("model", "packed"):
        quantized(tmp_path / name, tmp_path / f"{name}-out")
    first, second = (tmp_path / f"{name}-out" for name in ("model", "packed"))
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert "firelane_lossless" not in (second / "config.json").read_text()
    assert {p.name for p in second.iterdir()} == {p.name for p in first.iterdir()}


def test_what_cannot_be_quantised_is_refused_in_a_line(tmp_path: Path) -> None:
    model = write(tmp_path / "model", "bfloat16")
    codes = write_quantized("fp8, rows", tmp_path / "codes")
    cases: list[tuple[type[FirelaneError], str, Path, dict[str, Any]]] = [
        (UsageError, "is the model itself", model, {"out": model}),
        (UsageError, "is quantised already; give the model that it was made from", codes, {}),
        (UsageError, "--keep mlp.dwon_proj: matches no module", model, {"keep": ["mlp.dwon_proj"]}),
        (UsageError, "no matrix is left that int8 can hold", model, {"keep": ["*"]}),
    ]
    for error, says, directory, options in cases:
        with pytest.raises(error, match=says) as caught:
            quantized(directory, **({"out": tmp_path / "out"} | options))
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_experts_of_one_tensor_stay_where_that_is_asked(tmp_path: Path) -> None:
    model = make_checkpoint("gpt_oss", "bfloat16", tmp_path / "model")
    report = quantized(model, tmp_path / "out", keep=["mlp.experts.*", "lm_head"])
    assert not any("experts" in matrix.name for matrix in report.matrices)
    read_back(tmp_path / "out")


def test_numbers_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    model, name = write(tmp_path / "model", "float32"), "model.layers.1.mlp.up_proj.weight"
    tensors = random_tensors(CONFIG, 0)
    tensors[name][3, 5] = np.nan
    write_safetensors(model / "model.safetensors", tensors, "float32")
    with pytest.raises(CheckpointError, match=rf"tensor {name} holds NaN or infinite"):
        quantized(model, tmp_path / "out")
    assert not (tmp_path / "out/config.json").exists()
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_a_gguf_file_of_plain_numbers_is_quantised(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "toy.gguf", "qwen3", CONFIG, random_tensors(CONFIG, 0), fields={})
    quantized(model_directory(path, tmp_path / "cache"), tmp_path / "out")
    quantized(write(tmp_path / "model", "float32"), tmp_path / "twin")
    found, expected = read_back(tmp_path / "out"), read_back(tmp_path / "twin")
    assert set(found.names) == set(expected.names)
    for name in found.names:
        np.testing.assert_array_equal(found.tensor(name), expected.tensor(name), err_msg=name)
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= names
    assert "gguf.json" not in names
