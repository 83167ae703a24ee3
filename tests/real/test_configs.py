"""Published configs: those of listed families are read whole, and have as many parameters as transformers
counts."""

from __future__ import annotations

import json
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModel, AutoModelForCausalLM

from firelane.cli import main
from firelane.errors import UnsupportedModelError
from firelane.models.config.composite import language_model
from firelane.models.config.reader import read_config
from firelane.models.registry import architectures, load_program
from firelane.plan.forms import choose_form
from firelane.weights.quantized.settings import quantization_of
from tests.real import artefacts

SUFFIX = "_config.json"
SAME_AS = {"kimi_k2": "deepseek_v3", "mimo": "qwen2"}
"""Types of models of which transformers has the class by another name."""
ON_THE_HUB = {"nemotron-nas": 49.9e9}
"""Parameters of models that transformers does not know, as the hub counts them (Llama 3.3
Nemotron Super 49B)."""


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


@cache
def counted(text: str) -> float:
    """Parameters of the language model that transformers makes of a config, without memory for them."""
    config: dict[str, Any] = json.loads(text)
    language: dict[str, Any] = config.get("text_config") or config
    kind = language["model_type"]
    if kind in ON_THE_HUB:
        return ON_THE_HUB[kind]
    language = {key: language[key] for key in language if key not in ("quantization_config", "auto_map")}
    made = CONFIG_MAPPING[SAME_AS.get(kind, kind)].from_dict(language)
    with torch.device("meta"):
        if type(made) in MODEL_FOR_CAUSAL_LM_MAPPING:
            return size(AutoModelForCausalLM.from_config(made))
        # The language model of a composite model alone has no head.
        tied = config.get("tie_word_embeddings", False)
        return size(AutoModel.from_config(made)) + (0 if tied else made.vocab_size * made.hidden_size)


def size(model: torch.nn.Module) -> float:
    return sum(parameter.numel() for parameter in model.parameters())


LISTED = [path for path in artefacts.configs() if is_listed(json.loads(path.read_bytes()))]


def test_there_are_configs(published_configs: Path) -> None:
    assert len(list(published_configs.glob(f"*{SUFFIX}"))) >= 100
    assert len(LISTED) >= 46


@pytest.mark.parametrize("path", LISTED, ids=named)
def test_every_key_is_known_and_the_size_is_that_of_transformers(path: Path, tmp_path: Path) -> None:
    program = load_program(read_config(directory_of(path, tmp_path)))
    assert program.unknown_keys == ()
    numbers = sum(prod(weight.shape) for weight in program.weights)
    assert numbers == pytest.approx(counted(path.read_text(encoding="utf-8")), rel=0.005)


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
