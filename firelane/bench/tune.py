"""The autotuner's table for a model: what each form of each projection shape takes, and what is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firelane.backends.cpu.loader import settle, tune
from firelane.backends.cpu.tuning.projections import Projection
from firelane.backends.cpu.tuning.table import NEVER, Tuning, Verdict, judge, short_name
from firelane.backends.request import ExecutorRequest
from firelane.bench.table import format_table
from firelane.env import Environment
from firelane.models.config import read_config
from firelane.models.registry import load_program
from firelane.weights.progress import Progress


@dataclass(frozen=True, kw_only=True)
class TuneFigures:
    """The tuning of `model`; see Tuning."""

    model: str
    source: str
    chosen: dict[str, str]
    verdicts: dict[str, list[Verdict]]


def run_tune(
    model_dir: Path, environment: Environment, *, threads: int | None, force: bool, progress: Progress
) -> TuneFigures:
    """Measure, or read what was measured before. Raises what loading a model raises."""
    program = load_program(read_config(model_dir))
    request = ExecutorRequest(cache_dir=environment.cache_dir, threads=threads)
    return figures_of(model_dir.name, tune(program, settle(request), environment, progress, force=force))


def figures_of(model: str, tuning: Tuning) -> TuneFigures:
    def verdicts(projection: Projection) -> list[Verdict]:
        return judge([c for c in tuning.cells if c.projection == str(projection)])

    return TuneFigures(
        model=model,
        source=tuning.source,
        chosen={str(p): short_name(forms[0]) for p, forms in tuning.ranking.items()},
        verdicts={str(p): verdicts(p) for p in tuning.ranking},
    )


def format_tune(figures: TuneFigures) -> str:
    """One row for each form of each shape: its gain over bf16 by rows of a step; without a measurement what
    is chosen."""
    title = f"{figures.model}: {figures.source}"
    columns = sorted({rows for vs in figures.verdicts.values() for v in vs for rows in v.gains})
    if not columns:
        return "\n".join(
            [title, format_table(["projection", "form"], list(map(list, figures.chosen.items())))]
        )
    header = [
        "projection",
        "form",
        *(f"{rows} row{'s'[: rows - 1]}" for rows in columns),
        "decoded once from",
        "score",
        "",
    ]
    rows = [
        _row(name, verdict, columns, figures.chosen[name] == short_name(verdict.form))
        for name, verdicts in figures.verdicts.items()
        for verdict in verdicts
    ]
    note = "gain over bf16, in the same steps; decoded once from: tiles of rows"
    return "\n".join([title, note, format_table(header, rows)])


def _row(name: str, verdict: Verdict, columns: list[int], chosen: bool) -> list[str]:
    gains = [f"{verdict.gains[rows]:.2f}" if rows in verdict.gains else "" for rows in columns]
    once = "" if verdict.decode_once_from == NEVER else f"{verdict.decode_once_from} tiles"
    return [name, short_name(verdict.form), *gains, once, f"{verdict.score:+.3f}", "chosen" if chosen else ""]
