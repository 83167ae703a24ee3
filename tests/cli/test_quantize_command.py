"""firelane quantize: what it prints, and its errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from firelane.cli import main
from firelane.cli.model_commands.quantize import FORMATS
from firelane.sources.resolve import EMBEDDED
from firelane.weights.quantizing.schemes import SCHEMES
from tests.cli.test_cli import firelane_command


def test_formats_are_those_that_there_are() -> None:
    assert tuple(SCHEMES) == FORMATS


def test_the_embedded_model_with_an_evaluation(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(cache_dir))
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("Once upon a time there was a little girl who lived in a village. " * 4)
    arguments = ["quantize", str(EMBEDDED), str(out), "--format", "int8", "--keep", "o_proj", "lm_head"]
    assert main([*arguments, "--evaluate", str(text), "--evaluate-tokens", "50", "--threads", "2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\| model\.layers\.\d\.mlp\.down_proj +\| 256x704 \| 8\.02 \| +0\.\d{3}% ", printed)
    assert "matrices as int8, relative error 0." in printed
    assert "kept: 6 matrices, --keep o_proj" in printed
    assert re.search(
        r"49 tokens: KL divergence from bf16 0\.\d+ nats a token .* the same at \d+\.\d\d%", printed
    )
    assert json.loads((out / "quantization_report.json").read_text())["format"] == "int8"
    assert main([*arguments[:2], str(tmp_path / "all"), "--format", "int8", "--report"]) == 0
    assert capsys.readouterr().out.count("_proj") > 35


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--format", "int3"], "invalid choice: 'int3'"),
        (["--format", "int8", "--keep", "nothing"], "--keep nothing: matches no module of the model"),
        (["--format", "int8", "--evaluate", "/no/such"], "--evaluate /no/such: cannot be read as text"),
        ([], "required: --format"),
    ],
)
def test_errors_are_a_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = firelane_command("quantize", str(EMBEDDED), str(tmp_path / "out"), *arguments)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) <= 2
    assert says in lines[0]
