"""Heads that are served from their files, and those that are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firelane import LLM
from firelane.errors import FirelaneError
from firelane.llm import SamplingParams
from tests.engine.speculation.head_support import make_predicting, write_head
from tests.models.families import make_checkpoint
from tests.models.heads.torch_eagle3 import (
    DRAFT_VOCAB,
    WIDTH,
    Tensors,
    random_head,
    specforge_config,
    speculators_config,
)

SIZES: dict[str, Any] = {
    "max_num_seqs": 2,
    "max_num_batched_tokens": 32,
    "kv_cache_bytes": 4 << 20,
    "threads": 1,
}
PROMPTS = ["abcabcabc", "The head reads what the model has computed of each token."]
CASES = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.0, "seed": 3}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        "llama2", "bfloat16", tmp_path_factory.mktemp("models") / "llama", num_hidden_layers=3
    )


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def served(model: Path, cache_dir: Path, **options: Any) -> LLM:
    return LLM(str(model), cache_dir=cache_dir, backend="cpu", **SIZES, **options)


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("layout", ["midlayer", "layers.0"])
def test_answers_are_those_of_plain_decoding(
    model: Path, cache_dir: Path, tmp_path: Path, layout: str, isolated: bool
) -> None:
    """In a process of its own, too, whose sandbox lets it read the head."""
    config = specforge_config() if layout == "midlayer" else speculators_config()
    head = write_head(tmp_path / "head", config | {"torch_dtype": "bfloat16"}, random_head(layer=layout))
    with served(model, cache_dir, speculative=f"eagle3={head}", isolated=isolated) as llm:
        for case in CASES.values():
            plain = SamplingParams(max_tokens=64, speculative=False, **case)
            drafted = SamplingParams(max_tokens=64, **case)
            expected = [one.outputs[0].token_ids for one in llm.generate(PROMPTS, plain)]
            assert [one.outputs[0].token_ids for one in llm.generate(PROMPTS, drafted)] == expected
        if not isolated:
            assert llm._engine.core.drafter.drafted_tokens


@pytest.mark.parametrize("isolated", [False, True])
def test_layers_that_predict_are_served_from_the_models_own_files(
    cache_dir: Path, tmp_path: Path, isolated: bool
) -> None:
    model = make_predicting("glm4_moe", tmp_path / "model")
    with served(model, cache_dir, speculative="mtp", isolated=isolated) as llm:
        plain = SamplingParams(max_tokens=48, speculative=False, temperature=0.0)
        expected = [one.outputs[0].token_ids for one in llm.generate(PROMPTS, plain)]
        drafted = SamplingParams(max_tokens=48, temperature=0.0)
        assert [one.outputs[0].token_ids for one in llm.generate(PROMPTS, drafted)] == expected


def test_layers_that_predict_and_lack_tensors_are_refused(cache_dir: Path, tmp_path: Path) -> None:
    model = make_checkpoint("glm4_moe", "float32", tmp_path / "model", num_nextn_predict_layers=1)
    with pytest.raises(FirelaneError, match=r"tensor model\.layers\.\d\.eh_proj\.weight is missing"):
        served(model, cache_dir, speculative="mtp", isolated=False)


def without(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.pop(name)


def d2t(values: np.ndarray) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update(d2t=values)


HOSTILE: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "a tensor lacks": (without("midlayer.mlp.up_proj.weight"), "midlayer.mlp.up_proj.weight is missing"),
    "a tensor too many": (lambda t: t.update(extra=np.zeros((2, 2), np.float32)), "extra is not part"),
    "another shape": (
        lambda t: t.update({"fc.weight": np.zeros((WIDTH, WIDTH), np.float32)}),
        "fc.weight has shape",
    ),
    "ids behind the vocabulary": (d2t(np.full(DRAFT_VOCAB, 200, np.int64)), "the model has 0 to 260"),
    "ids before it": (d2t(np.full(DRAFT_VOCAB, -(2**62), np.int64)), "the model has 0 to 260"),
    "too few ids": (d2t(np.zeros(3, np.int64)), r"d2t is I64 \[3\]"),
    "ids that are numbers": (d2t(np.zeros(DRAFT_VOCAB, np.float32)), "d2t is F32"),
    "another table": (
        lambda t: t.update({"embed_tokens.weight": np.zeros((7, WIDTH), np.float32)}),
        r"embed_tokens.weight has shape \[7, 80\]",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tensors_are_refused_by_name(case: str, model: Path, cache_dir: Path, tmp_path: Path) -> None:
    change, said = HOSTILE[case]
    tensors = random_head()
    change(tensors)
    head = write_head(tmp_path / "head", specforge_config(), tensors)
    with pytest.raises(FirelaneError, match=said):
        served(model, cache_dir, speculative=f"eagle3={head}", isolated=False)


def test_directories_that_are_no_heads(model: Path, cache_dir: Path, tmp_path: Path) -> None:
    def refused(said: str) -> None:
        with pytest.raises(FirelaneError, match=said):
            served(model, cache_dir, speculative=f"eagle3={tmp_path / 'head'}", isolated=False)

    refused("head")
    head = tmp_path / "head"
    head.mkdir()
    refused("config.json")
    (head / "config.json").write_text(json.dumps(specforge_config()))
    (head / "pytorch_model.bin").write_bytes(b"\x80\x04K\x01.")
    refused("only safetensors")
    (head / "pytorch_model.bin").rename(head / "model.safetensors")
    refused("model.safetensors")
    write_head(head, specforge_config(), random_head())
    (head / "config.json").write_text("[")
    refused("not valid JSON")


def test_models_that_no_head_drafts_for(model: Path, cache_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(FirelaneError, match="layers that predict tokens are not known of LlamaForCausalLM"):
        served(model, cache_dir, speculative="mtp", isolated=False)
    head = write_head(tmp_path / "head", specforge_config(), random_head())
    windows = make_checkpoint("mistral", "float32", tmp_path / "windows")
    with pytest.raises(FirelaneError, match="windows has no attention over all tokens"):
        served(windows, cache_dir, speculative=f"eagle3={head}", isolated=False)
