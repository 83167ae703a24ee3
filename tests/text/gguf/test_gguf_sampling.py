"""Sampling that a GGUF file advises reaches the requests that name none."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

from firelane.text.gguf.sampling import advised_sampling
from firelane.text.model_files import read_model_files
from firelane.text.prompt import default_sampling


def float32(value: float) -> float:
    """Round a value to float32, as it is read from a file."""
    return float(np.float32(value))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({}, {}),
        ({"temp": float32(0.6), "top_k": 20}, {"temperature": 0.6, "top_k": 20}),
        ({"top_p": float32(0.95), "min_p": 0.0}, {"top_p": 0.95, "min_p": 0.0}),
        ({"penalty_repeat": float32(1.05), "penalty_last_n": 64}, {"repetition_penalty": 1.05}),
        ({"penalty_repeat": float32(1.05), "penalty_last_n": 0}, {}),
        ({"mirostat": 0, "xtc_probability": 0.0, "xtc_threshold": float32(0.1), "sequence": "k;p"}, {}),
    ],
)
def test_entries_in_the_words_of_generation_config(entries, expected, caplog):
    caplog.set_level(logging.WARNING, "firelane")
    assert advised_sampling({f"general.sampling.{name}": v for name, v in entries.items()}) == expected
    assert not caplog.records


def test_what_cannot_be_done_is_named(caplog):
    metadata = {"general.sampling.mirostat": 2, "general.sampling.top_n_sigma": 1.0, "general.name": "a"}
    assert advised_sampling(metadata) == {}
    assert [r.getMessage() for r in caplog.records] == [
        "gguf_sampling_ignored general.sampling.mirostat=2",
        "gguf_sampling_ignored general.sampling.top_n_sigma=1.0",
    ]


def test_each_value_of_the_author_comes_first(tmp_path):
    advised = advised_sampling({"general.sampling.top_k": 64, "general.sampling.temp": "hot"})
    (tmp_path / "generation_config.json").write_text(json.dumps(advised))
    author = read_model_files(tmp_path).defaults
    assert author == {"top_k": 64}
    values = default_sampling(author, "llama.cpp")
    assert (values["top_k"], values["temperature"], values["top_p"], values["min_p"]) == (64, 0.8, 0.95, 0.05)
    assert default_sampling(author, "vllm") == {
        **{"temperature": 1.0, "top_k": 64, "top_p": 1.0},
        **{"min_p": 0.0, "repetition_penalty": 1.0},
    }
