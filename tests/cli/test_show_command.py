"""What `firelane show` tells of a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

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


def test_of_an_author_who_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show"]) == 0
    assert told(capsys)[3] == "author    advises no sampling"
