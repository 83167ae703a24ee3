"""Checkpoints with random weights, and what llama.cpp is given of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from tests.bench.test_scripts import load

TOY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "head_dim": 32, "vocab_size": 128}
SHAPES = ("qwen3-0.6b", "gemma3-1b")


@pytest.fixture(params=SHAPES)
def toy(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, object]]:
    """A checkpoint of this family, narrow, and its config."""
    script = load("random_model")
    config = script.SHAPES[request.param] | TOY
    script.write_checkpoint(tmp_path, config)
    return tmp_path, config


def test_random_weights_have_the_scale_of_trained_ones(toy: tuple[Path, dict[str, object]]) -> None:
    directory, config = toy
    checkpoint = Checkpoint.open(directory)
    for weight in load_program(config).weights:
        for piece in weight.pieces:
            values = (checkpoint.tensor(piece.tensor).astype(np.uint32) << 16).view(np.float32) + piece.plus
            if weight.is_matrix:
                assert np.std(values) * weight.k**0.5 == pytest.approx(2.0, rel=0.1), piece.tensor
            else:
                assert np.mean(values) == pytest.approx(1.0, abs=0.2), piece.tensor


def test_gguf_has_each_tensor_once_by_its_own_name(toy: tuple[Path, dict[str, object]]) -> None:
    directory, config = toy
    script, checkpoint = load("gguf_of_checkpoint"), Checkpoint.open(directory)
    found = dict(script.tensors(directory / "model.safetensors"))
    assert set(found) == {piece.tensor for w in load_program(config).weights for piece in w.pieces}
    for name, bits in found.items():
        np.testing.assert_array_equal(bits, checkpoint.tensor(name))
    kind = script.architecture(config)
    assert len({script.gguf_name(name, kind) for name in found}) == len(found)


def test_norms_of_gemma_around_blocks() -> None:
    name = load("gguf_of_checkpoint").gguf_name
    assert name("model.layers.3.post_attention_layernorm.weight", "qwen3") == "blk.3.ffn_norm.weight"
    after = name("model.layers.3.post_attention_layernorm.weight", "gemma3")
    assert after == "blk.3.post_attention_norm.weight"
    assert name("model.embed_tokens.weight", "gemma3") == "token_embd.weight"


def test_another_family_is_refused() -> None:
    with pytest.raises(SystemExit, match="llama: only qwen3 and gemma3 are written"):
        load("gguf_of_checkpoint").architecture({"model_type": "llama"})


def test_agreement_counts_tokens_of_the_answer_and_differences_of_all() -> None:
    script = load("agreement_with_llamacpp")
    drawn = script.Drawn(None, {2: 7, 3: 8}, {1: -1.0, 2: -2.0, 3: -3.0})
    text = script.compare(drawn, [(5, -1.5), (7, -2.0), (9, -2.9)], 2)
    assert text.startswith("3 log-probabilities: largest difference 0.5000, mean 0.2000;")
    assert text.endswith("most likely token the same at 1 of 2 places")
