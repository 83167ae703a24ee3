"""The tuner's table as text: measured, and by the default rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.backends.cpu.tuning.projections import Projection
from firelane.backends.cpu.tuning.table import Cell, describe, tuning_of
from firelane.bench.table import write_json
from firelane.bench.tune import figures_of, format_tune, run_tune
from firelane.cli import main
from firelane.env import Environment
from firelane.weights.progress import silent
from firelane.weights.sources import EMBEDDED

SHAPE = Projection("Linear", 8, 16)


def cell(form: str, rows: int, gain: float) -> Cell:
    return Cell(
        projection="Linear 8x16",
        form=form,
        rows=rows,
        tiles=rows // 8 or 1,
        once=rows > 8,
        seconds=1e-3,
        gain=gain,
        error=0.01,
    )


CELLS = [
    *(cell("panel_window4", rows, gain) for rows, gain in ((1, 1.31), (8, 1.2), (16, 1.0))),
    *(cell("panel_window3", rows, gain) for rows, gain in ((1, 1.5), (8, 0.7), (16, 0.6))),
]
TUNING = tuning_of([SHAPE], CELLS, tables=(), source="measured in 3.0 s")


def test_one_row_a_form() -> None:
    text = format_tune(figures_of("toy", TUNING))
    rows = {line.split("|")[2].strip(): line for line in text.splitlines() if line.startswith("| Linear")}
    assert set(rows) == {"bf16", "window4", "window3"}
    assert "1.31 |" in rows["window4"]
    assert [form for form, line in rows.items() if "chosen" in line] == ["window4"]
    assert text.startswith("toy: measured in 3.0 s")
    assert "| 1 row |" in text


def test_one_line_for_the_log() -> None:
    assert describe(TUNING) == "Linear 8x16: window4 (1.31x at 1, 1.20x at 8, 1.00x at 16 rows)"


def test_the_embedded_model_takes_the_default_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = run_tune(EMBEDDED, Environment(cache_dir=tmp_path), threads=1, force=False, progress=silent)
    assert "default rule" in figures.source
    assert len(set(figures.chosen.values())) == 1
    assert figures.chosen["Linear 256x704"] in ("window4", "bf16")
    assert "Linear 256x704" in format_tune(figures)
    assert main(["bench", "tune", "--json", str(tmp_path / "tune.json")]) == 0
    assert format_tune(figures).splitlines()[-1] in capsys.readouterr().out
    assert b"Linear 256x704" in (tmp_path / "tune.json").read_bytes()


def test_figures_can_be_written(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", figures_of("toy", TUNING))
    assert b"panel_window4" in (tmp_path / "a.json").read_bytes()
