"""pack, unpack and verify as commands: what they print, and their errors."""

from __future__ import annotations

import filecmp
import re
from pathlib import Path

import pytest

from firelane.cli import main
from firelane.errors import ModelNotFoundError
from firelane.sources.resolve import EMBEDDED
from tests.cli.test_cli import firelane_command

FILES = [p.name for p in EMBEDDED.iterdir()]


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--threads", "2"]) == 0
    return capsys.readouterr().out


def test_round_trip_of_the_embedded_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, again = str(tmp_path / "packed"), str(tmp_path / "again")
    assert re.fullmatch(
        r"0\.011 GB -> 0\.007 GB: 6\d\.\d% of the original\n", output(capsys, "pack", str(EMBEDDED), packed)
    )
    assert "0.011 GB are what was packed" in output(capsys, "verify", packed)
    assert "0.011 GB written and checked" in output(capsys, "unpack", packed, again)
    assert filecmp.cmpfiles(EMBEDDED, again, FILES, shallow=False) == (FILES, [], [])
    assert "checked and kept: model.safetensors" in output(capsys, "pack", str(EMBEDDED), packed)


def test_report_without_writing(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "pack", str(EMBEDDED), "--report").splitlines()
    rows = {cells[1]: cells[2:-1] for line in lines if len(cells := [c.strip() for c in line.split("|")]) > 3}
    gate = rows["model.layers.0.mlp.gate_proj.weight"]
    assert gate[:2] == ["BF16", "180224"]
    assert 2.4 < float(gate[2]) < 2.8
    assert all(99.5 < float(share.rstrip("%")) <= 100 for share in (gate[3], gate[7]))
    assert float(gate[3].rstrip("%")) + float(gate[4].rstrip("%")) == pytest.approx(100)
    at_rest, wide, narrow = map(float, gate[8:])
    assert 10 < at_rest < 11
    assert wide == pytest.approx(12 + 8 * float(gate[4].rstrip("%")) / 100, abs=0.01)
    assert narrow == pytest.approx(11 + 8 * float(gate[6].rstrip("%")) / 100, abs=0.01)
    assert rows["model.norm.weight"][-2:] == ["16.00", "16.00"]
    assert float(rows["all"][8]) < 10.8


def test_out_or_report_is_needed() -> None:
    done = firelane_command("pack", str(EMBEDDED))
    assert done.returncode == 2
    assert (
        done.stderr == "firelane: error: OUT is missing: give a new directory, or --report to write nothing\n"
    )


@pytest.mark.parametrize(
    "arguments", [["pack", "/no/such", "x"], ["unpack", "/no/such", "x"], ["verify", "/no/such"]]
)
def test_no_such_model(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRELANE_LOG_LEVEL", "debug")
    with pytest.raises(ModelNotFoundError, match="/no/such: no such directory"):
        main(arguments)


def test_error_is_one_line() -> None:
    done = firelane_command("verify", str(EMBEDDED))
    assert done.returncode == 1
    assert done.stderr == f"firelane: error: {EMBEDDED}: is not a packed model; `firelane pack` makes one\n"


def test_a_packed_model_answers_as_the_original(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output(capsys, "pack", str(EMBEDDED), str(tmp_path / "packed"))
    options = ["--prompt", "Once upon a time", "--max-tokens", "12", "--temperature", "0"]
    texts = [
        firelane_command("generate", model, *options, FIRELANE_CACHE_DIR=str(cache_dir)).stdout
        for model in (str(EMBEDDED), str(tmp_path / "packed"))
    ]
    assert texts[0] == texts[1] != ""
