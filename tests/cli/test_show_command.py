"""`firelane show` describes a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from firelane.cli import main
from firelane.sources.resolve import EMBEDDED


@pytest.fixture
def advised(tmp_path: Path) -> Path:
    """The embedded model's files but for its weights, with an author's advice."""
    directory = tmp_path / "mine"
    shutil.copytree(EMBEDDED, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "eos_token_id": 1}))
    return directory


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_of_this_machine(advised: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(advised)]) == 0
    lines = told(capsys)
    assert lines[0] == "model     mine: llama, 5.48 million parameters"
    assert lines[3] == "author    advises temperature 0.3"
    assert lines[4].startswith("sampling  temperature 0.3, top_k 40, top_p 0.95, min_p 0.05")
    assert lines[5].startswith("          temperature 0.3, top_k 0, top_p 1, min_p 0")


def test_of_a_checkpoint_without_a_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((EMBEDDED / "config.json").read_text()) | {"tie_word_embeddings": False}
    for has_head in (True, False):
        directory = tmp_path / str(has_head)
        shutil.copytree(EMBEDDED, directory, ignore=shutil.ignore_patterns("*.safetensors"))
        (directory / "config.json").write_text(json.dumps(config))
        table = np.zeros((config["vocab_size"], config["hidden_size"]), np.float16)
        tensors = {"model.embed_tokens.weight": table} | ({"lm_head.weight": table} if has_head else {})
        save_file(tensors, directory / "model.safetensors")
        assert main(["show", str(directory)]) == 0
        told_of = told(capsys)[2]
        assert told_of == (
            "template  for chats" if has_head else "can       embed alone: its checkpoint has no head"
        )


def test_of_an_author_who_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show"]) == 0
    assert told(capsys)[3] == "author    advises no sampling"
