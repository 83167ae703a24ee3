"""KL divergence and most likely tokens of two models on a text, against the NumPy reference's logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firelane.bench.divergence import divergence
from firelane.engine_config import EngineConfig
from firelane.errors import UsageError
from tests.models.families import make_checkpoint

TEXT = "The quick brown fox jumps over the lazy dog. " * 3


def config_of(model: Path, **options: Any) -> EngineConfig:
    return EngineConfig(model_dir=model, max_num_seqs=1, kv_cache_bytes=16 << 20, backend="cpu", **options)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """With logits that are scaled and capped."""
    directory = make_checkpoint("gemma2", "bfloat16", tmp_path / "model")
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    return directory


def test_a_model_does_not_diverge_from_itself(model: Path, cache_dir: Path) -> None:
    config = config_of(model, cache_dir=cache_dir)
    found = divergence(config, config, TEXT, most_tokens=60)
    assert (found.tokens, found.mean_kl, found.largest_kl, found.top1) == (59, 0, 0, 1)
    assert found.perplexities[0] == found.perplexities[1]


def test_fewer_bits_diverge_more(model: Path, cache_dir: Path) -> None:
    plain = config_of(model, cache_dir=cache_dir)
    found = divergence(plain, config_of(model, cache_dir=cache_dir, weights="int8"), TEXT, most_tokens=1000)
    assert 0 < found.mean_kl < found.largest_kl
    assert found.tokens > 100
    assert 0.5 < found.top1 <= 1


def test_logprobs_are_those_of_the_engine(model: Path, cache_dir: Path) -> None:
    """Perplexity is that of the log-probabilities which the engine reports."""
    from firelane import LLM, SamplingParams

    plain = config_of(model, cache_dir=cache_dir)
    found = divergence(plain, plain, TEXT, most_tokens=40)
    with LLM(str(model), cache_dir=cache_dir) as llm:
        ids = llm._tokenizer.encode(TEXT)[:40]
        reported = llm.generate([ids], SamplingParams(max_tokens=1, prompt_logprobs=0))[0].prompt_logprobs
    assert reported is not None
    lost = [-entry[token].logprob for token, entry in zip(ids[1:], reported[1:], strict=True) if entry]
    assert found.perplexities[0] == pytest.approx(np.exp(np.mean(lost)), rel=1e-3)


def test_a_text_without_tokens_is_refused(model: Path, cache_dir: Path) -> None:
    config = config_of(model, cache_dir=cache_dir)
    with pytest.raises(UsageError, match="fewer than two tokens"):
        divergence(config, config, "", most_tokens=10)
