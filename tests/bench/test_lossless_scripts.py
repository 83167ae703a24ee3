"""benchmarks/lossless*.py: ratios, tables, the plot, and the parts that can run on a toy."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.values import StepShape
from firelane.sources.resolve import EMBEDDED
from firelane.weights.formats.formats import Format

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("figures", "report", "published", "plot", "starts", "steps", "at_rest")


@pytest.fixture(scope="module")
def scripts() -> Any:
    """The modules, found beside each other as when lossless.py runs."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield type("Scripts", (), {name: __import__(f"lossless_{name}") for name in MODULES})
    finally:
        sys.path.remove(str(SCRIPTS))


def other_parts(f: Any, conditions: Any) -> dict[str, Any]:
    at_rest = f.AtRest(
        conditions=conditions,
        weights=1000,
        original_bytes=2000,
        packed_bytes=1330,
        limit_bits=10.5,
        command_pack_gbps=1.2,
        file_decode_gbps=2.0,
        coders=[f.Coder(name="own", bits=10.6, pack_gbps=1.5, unpack_gbps=3.5)],
    )
    starts = f.Starts(
        conditions=conditions,
        dropped="all of it",
        drive_gbps=[1.0],
        read_bytes={
            c: {"bf16 directory": 2000, "packed directory": 1330} for c in ("first load", "later load")
        },
        seconds={
            "later load": {"bf16 directory": [2.0, 2.0], "packed directory": [1.0, 2.0]},
            "first load": {"bf16 directory": [4.0, 4.0], "packed directory": [3.0, 3.0]},
        },
    )
    peer = f.Peer(
        conditions=conditions,
        peer="llamacpp",
        output_tokens=64,
        seconds={"lossless": [2.0, 2.0], "llamacpp": [2.5, 3.5]},
    )
    return {"at_rest": at_rest, "starts": starts, "peer": peer}


@pytest.fixture(scope="module")
def figures(scripts: Any) -> Any:
    f = scripts.figures
    conditions = f.Conditions(machine="m", versions="v", commit="c", date="d", priority="p", command="go")
    seconds = {"bf16": [2.0, 4.0, 3.0], "lossless": [1.0, 4.0, 2.0], "auto": [1.0, 2.0, 1.5]}
    steps = [
        f.Step(
            name=name,
            rows=rows,
            prefill=rows == 512,
            seconds=seconds,
            moved_bytes={"bf16": 4e9, "lossless": 3e9, "auto": 3e9},
            read_gbps=[2.0, 1.0, 4.0],
        )
        for name, rows in {"decode, 1": 1, "decode, 8": 8, "prefill, 512": 512}.items()
    ]
    measured = f.Steps(
        conditions=conditions,
        threads=2,
        weights=1000,
        checkpoint_bytes=2000,
        resident_bytes={"bf16": 2000, "lossless": 1450, "auto": 1500},
        forms={"bf16": "2 plain", "lossless": "2 panel_coded3", "auto": "2 panel_coded4"},
        notes=["measured in 9 s"],
        steps=steps,
    )
    parts = other_parts(f, conditions)
    return f.Figures(model="toy", steps=measured, **parts)


def cells(table: str, first: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {first}"))
    return [c.strip() for c in line.strip("|").split("|")]


def test_ratios_are_of_the_same_round(scripts: Any) -> None:
    base, other = [2.0, 4.0, 3.0], [1.0, 4.0, 2.0]
    assert scripts.figures.median_ratio(base, other) == 1.5
    assert scripts.figures.best_ratio(base, other) == 2.0


def test_requirements_are_judged(scripts: Any, figures: Any) -> None:
    judged = {r.what: (r.value, r.verdict) for r in scripts.report.requirements(figures)}
    assert judged["size at rest / bf16, all bf16 tensors"] == (0.665, "aim reached")
    assert judged["resident weights / bf16: lossless"] == (0.725, "aim reached")
    assert judged["decode, 1: lossless / our bf16"] == (1.5, "aim reached")
    assert judged["decode, 1: lossless / llama.cpp bf16"] == (1.5, "aim reached")
    assert judged["decode, 8: auto / our bf16"] == (2.0, "aim reached")
    assert judged["decode, 32: auto / our bf16"] == (None, "not measured")
    assert judged["pack, per core"] == (1.2, "aim reached")
    assert judged["decode of the at-rest form, bf16 bytes out, per core"] == (2.0, "met")
    assert judged["cold start, first load: packed directory / bf16 directory, time"] == (0.75, "met")
    requirement = scripts.report.Requirement(what="", must=0.7, aim=0.6, value=0.71, at_most=True)
    assert requirement.verdict == "missed"


def test_page_shows_times_rates_and_conditions(scripts: Any, figures: Any) -> None:
    page = scripts.report.render(figures)
    assert cells(page, "packed files")[1:3] == ["10.640", "0.6650"]
    assert cells(page, "lossless ")[1:4] == ["0.000", "0.7250", "11.60"]
    speed, moved = (t for t in page.split("\n\n") if "| decode, 1 " in t)
    assert cells(speed, "decode, 1 ") == [
        "decode, 1",
        "2000.00",
        "1000.00",
        "1000.00",
        *["1.50x (2.00x)", "2.00x (2.00x)"],
    ]
    # lossless: 3, 0.75 and 1.5 GB/s of limits of 2, 1 and 4
    assert cells(moved, "decode, 1 ")[3] == "3.000, 1.5, 75%"
    assert cells(page, "first load, packed directory")[1:4] == ["3.00", "3.00", "0.75"]
    assert cells(page, "Firelane, --weights lossless")[1:] == ["32.0", "1.50x", "1.25x"]
    assert "scheduling: p" in page
    assert "`go`" in page
    assert "measured in 9 s" in page


def test_page_is_filled_between_its_marks(scripts: Any, figures: Any) -> None:
    begin, end = scripts.report.PAGE_MARKS
    text = scripts.report.fill_page(f"before {begin} stale {end} after", figures, "results")
    assert text.startswith(f"before {begin}\n![")
    assert text.endswith(f"\n{end} after")
    assert "(results/lossless.svg)" in text
    assert "stale" not in text
    assert cells(text, "decode, 8")[1] == "2.00x"
    assert "decode, 32" not in text
    assert scripts.report.fill_page(text, figures, "results") == text
    with pytest.raises(ValueError, match="substring"):
        scripts.report.fill_page("no marks", figures, "results")


def test_parts_that_were_not_measured_are_left_out(scripts: Any) -> None:
    page = scripts.report.render(scripts.figures.Figures(model="toy"))
    assert page.count("not measured") == len(
        scripts.report.requirements(scripts.figures.Figures(model="toy"))
    )
    assert "## At rest" not in page
    assert "## Beside published figures" in page


def test_published_figures_name_their_sources(scripts: Any) -> None:
    for p in scripts.published.PUBLISHED:
        assert "arXiv" in p.source or "Cloudflare" in p.source
        assert all(bits is None or 10 < bits < 16 for bits in (p.bits_at_rest, p.bits_in_memory))


def test_figures_are_kept_for_the_same_model(scripts: Any, figures: Any, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    scripts.figures.save_figures(path, figures)
    assert scripts.figures.load_figures(path, "toy") == figures
    assert scripts.figures.load_figures(path, "another").steps is None


def test_plot_is_the_same_for_the_same_figures(scripts: Any, figures: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / name for name in ("a.svg", "b.svg")]
    for path in paths:
        scripts.plot.save_plot(figures, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert scripts.plot.own_bits(figures)["--weights auto"] == 12.0


def test_command_is_shown_without_places(scripts: Any) -> None:
    words = ["/a/model", "--out", "/b", "--parts", "steps", "--peers-script", "x/peers.py"]
    shown = scripts.figures.shown_command(words)
    assert shown == "python benchmarks/lossless.py model --parts steps --peers-script peers.py"


def test_turns_begin_with_another_form_each_round(scripts: Any) -> None:
    assert [scripts.figures.rotated(["a", "b", "c"], turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]


def test_a_step_moves_less_by_what_the_form_saves(scripts: Any) -> None:
    program = load_program(read_config(EMBEDDED))  # its embedding is tied: the head reads it whole
    forms = {w.name: Format.PANEL_CODED4 for w in program.weights if len(w.shape) == 2}
    executors = {
        "bf16": SimpleNamespace(layout=SimpleNamespace(forms={}), weights_bytes=1000),
        "lossless": SimpleNamespace(layout=SimpleNamespace(forms=forms), weights_bytes=700),
    }
    shape = StepShape(tokens=1, outputs=1, attended=8, context=8, sequences=1)
    moved = scripts.steps.moved_bytes(program, executors, shape)
    cost = program.cost(shape)
    assert moved["bf16"] == cost.weight_bytes + cost.kv_bytes
    assert moved["bf16"] - moved["lossless"] == 300


def test_drive_is_read_in_whole_pieces(scripts: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(scripts.starts.PIECE_BYTES - 1))
    assert np.isnan(scripts.starts.drive_gbps(path))


def test_entropy_limit_is_that_of_each_tensor(scripts: Any) -> None:
    class Two:
        names = ("a", "b", "norm")

        def tensor(self, name: str) -> Any:
            exponents = {"a": [127, 127], "b": [126, 127]}
            if name == "norm":
                return np.zeros(4, np.float32)
            return np.array(exponents[name], np.uint16) << 7

    assert scripts.at_rest.entropy_limit(Two()) == (4, 8.5)
    assert scripts.at_rest.sample_of(Two(), 3).tolist() == [127 << 7, 127 << 7, 126 << 7]
