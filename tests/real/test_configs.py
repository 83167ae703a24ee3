"""Published configs: those of listed families are read whole, and have as many parameters as is published."""

from __future__ import annotations

import json
import re
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest

from firelane.cli import main
from firelane.errors import UnsupportedModelError
from firelane.models.config.composite import language_model
from firelane.models.config.reader import read_config
from firelane.models.registry import architectures, load_program
from firelane.plan.forms import choose_form
from firelane.weights.quantized.settings import quantization_of
from tests.real import artefacts

SUFFIX = "_config.json"
BILLIONS = {
    "Gemma-4-26B-A4B": 25.2,
    "Kimi-K2": 1026.4,
    "DeepSeek-(V3|R1)": 671.0,
    "Llama-4-Maverick": 400.7,
    "Llama-4-Scout": 107.8,
    "Llama-3_3-Nemotron-Super-49B": 49.9,
    "Meta-Llama-3.1-405B": 405.9,
    "(Meta-)?Llama-3.1-70B": 70.6,
    "Meta-Llama-3.1-8B": 8.03,
    "MiniMax-M2.[57]": 228.7,
    "Mixtral-8x22B": 140.6,
    "Mixtral-8x7B": 46.7,
    "Qwen3-0.6B": 0.596,
    "Qwen3-1.7B": 1.72,
    "Qwen3-8B": 8.19,
    "Qwen3-30B": 30.5,
    "Qwen3-32B": 32.8,
    "Qwen3-235B": 235.1,
    "Qwen3-Coder-480B": 480.2,
    "gemma-4-26B": 25.2,
    "Gemma-4-31B": 30.7,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
}
"""By the beginning of a model's name, parameters as its card, or the hub's count of its tensors, has them."""
WITHOUT_EYES = re.compile(r"Qwen3\.[56]-(\d+)B")
"""Models whose size in the name counts the parts that see and draft, too, which are left out here: the
language model has as many parameters, or up to three in a hundred less."""


@cache
def known() -> frozenset[str]:
    return frozenset(architectures())


def is_listed(config: dict[str, Any]) -> bool:
    (name,) = config["architectures"]
    return bool(known() & {name, f"{name}:{language_model(config).config.get('model_type')}"})


def named(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def directory_of(path: Path, to: Path) -> Path:
    """A model's directory: its config, and the file beside it where there is one."""
    to.mkdir(exist_ok=True)
    beside = path.with_name(f"{named(path)}_hf_quant_config.json")
    for source, name in ((path, "config.json"), (beside, "hf_quant_config.json")):
        if source.is_file():
            (to / name).write_bytes(source.read_bytes())
    return to


LISTED = [path for path in artefacts.configs() if is_listed(json.loads(path.read_bytes()))]


def test_there_are_configs(published_configs: Path) -> None:
    assert len(list(published_configs.glob(f"*{SUFFIX}"))) >= 100
    assert len(LISTED) >= 46


@pytest.mark.parametrize("path", LISTED, ids=named)
def test_every_key_is_known_and_the_size_is_the_published_one(path: Path, tmp_path: Path) -> None:
    program = load_program(read_config(directory_of(path, tmp_path)))
    assert program.unknown_keys == ()
    billions = sum(prod(weight.shape) for weight in program.weights) / 1e9
    _, _, model = named(path).partition("--")
    size = WITHOUT_EYES.match(model)
    if size is not None:
        assert 0.97 * int(size[1]) <= billions <= 1.01 * int(size[1])
        return
    (expected,) = [count for name, count in BILLIONS.items() if re.match(name, model)]
    assert billions == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("path", LISTED, ids=named)
def test_program_and_plan(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = directory_of(path, tmp_path)
    assert main(["program", str(directory)]) == 0
    assert main(["plan", str(directory / "config.json"), "--device", "h200:16", "--tp", "8", "--json"]) == 0
    printed = capsys.readouterr()
    assert "config_keys_unknown" not in printed.err
    quantised = (directory / "hf_quant_config.json").is_file()
    quantised = quantised or '"quantization_config"' in path.read_text(encoding="utf-8")
    assert bool(quantization_of(directory)) is quantised


QUANTISED = [
    path
    for path in artefacts.quantisations()
    if path.with_name(path.name.replace("_hf_quant_config.json", SUFFIX)) in LISTED
]


@pytest.mark.parametrize("path", QUANTISED, ids=named)
def test_a_quantisation_is_told_by_the_second_file_alone(path: Path, tmp_path: Path) -> None:
    """A plan takes as much memory for the weights as with the section of config.json."""
    config = json.loads(path.with_name(path.name.replace("_hf_quant_config.json", SUFFIX)).read_bytes())
    config.pop("quantization_config", None)
    config.get("text_config", {}).pop("quantization_config", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "hf_quant_config.json").write_bytes(path.read_bytes())
    found = read_config(tmp_path)
    program = load_program(found)
    form = choose_form(program, "auto", tmp_path, found)
    coded = sum(form.nbytes(weight) for weight in program.weights)
    assert form.name == "checkpoint"
    assert coded < 0.62 * program.weights_bytes


def test_other_architectures_are_refused_by_name() -> None:
    others = [path for path in artefacts.configs() if path not in LISTED]
    for path in others:
        with pytest.raises(UnsupportedModelError, match="is not supported; supported: "):
            load_program(json.loads(path.read_bytes()))
