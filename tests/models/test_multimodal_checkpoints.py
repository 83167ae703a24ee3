"""Language models inside of multimodal checkpoints, as transformers saves them: other prefixes, tensors of
eyes, and experts in the form that is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from tests.models.test_exactness import BF16_BOUND, F32_BOUND, logits_of, prompt, run_oracle
from tests.models.toy_config import MAX_LEN, VOCAB_SIZE, WINDOW

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 80,
    "intermediate_size": 136,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": MAX_LEN,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5000000.0,
        "mrope_section": [8, 4, 4],
        "mrope_interleaved": True,
    },
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 44}
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 80,
    "patch_size": 4,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
SPECIAL = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}


def save(
    directory: Path, kind: str, text: dict[str, Any], *, tied: bool, dtype: torch.dtype
) -> torch.nn.Module:
    """Writes a model with weights as large as toys have them; returns it in float32."""
    config = getattr(transformers, f"{kind}Config")(
        text_config={**text, "tie_word_embeddings": tied},
        vision_config=VISION,
        tie_word_embeddings=tied,
        **SPECIAL,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(len(kind) + tied)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            _fill(name, weight)
    model.to(dtype).save_pretrained(directory)
    return model.float()


def _fill(name: str, weight: torch.Tensor) -> None:
    if weight.ndim == 1:
        weight.copy_(1 + 0.2 * torch.randn_like(weight))
    else:
        spread = 3.0 if name.endswith(("lm_head.weight", "embed_tokens.weight")) else 1.0
        weight.copy_(torch.randn_like(weight) * spread * weight.shape[-1] ** -0.5)


def load(directory: Path) -> Program:
    return fitted(load_program(read_config(directory)), Checkpoint.open(directory))


def text_of(length: int) -> np.ndarray:
    """Tokens, none of which stands for an image."""
    return np.maximum(prompt(length), max(SPECIAL.values()) + 1)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("kind", "text"), [("Qwen3VL", TEXT), ("Qwen3VLMoe", TEXT | EXPERTS)])
def test_logits(tmp_path: Path, kind: str, text: dict[str, Any], tied: bool) -> None:
    model, tokens = save(tmp_path, kind, text, tied=tied, dtype=torch.float32), text_of(2 * WINDOW)
    program = load(tmp_path)
    assert program.unknown_keys == ()
    want, got = run_oracle(model, tokens), logits_of(program, tmp_path, tokens, [len(tokens)])
    assert np.ptp(want) > 8
    np.testing.assert_allclose(got, want, rtol=0, atol=F32_BOUND)


def test_experts_in_published_form(tmp_path: Path) -> None:
    """Transposed: transformers turns them when it loads them, and does not turn them back."""
    save(tmp_path, "Qwen3VLMoe", TEXT | EXPERTS, tied=True, dtype=torch.float32)
    tokens = text_of(WINDOW)
    want = logits_of(load(tmp_path), tmp_path, tokens, [len(tokens)])
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    turned = {k: v.transpose(1, 2).contiguous() for k, v in tensors.items() if ".mlp.experts." in k}
    assert len(turned) == 4
    save_file(tensors | turned, file, {"format": "pt"})
    np.testing.assert_array_equal(logits_of(load(tmp_path), tmp_path, tokens, [len(tokens)]), want)


def test_logits_in_bf16(tmp_path: Path) -> None:
    model, tokens = save(tmp_path, "Qwen3VL", TEXT, tied=True, dtype=torch.bfloat16), text_of(WINDOW)
    want, got = run_oracle(model, tokens), logits_of(load(tmp_path), tmp_path, tokens, [len(tokens)])
    np.testing.assert_allclose(got, want, rtol=0, atol=BF16_BOUND)
