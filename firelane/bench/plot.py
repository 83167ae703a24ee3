"""The plot of a serving benchmark: distributions of latencies, and what went on over its time."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firelane.bench.client import Outcome
from firelane.bench.summary import running_over_time, tokens_by_second
from firelane.errors import UsageError


def require_matplotlib() -> None:
    """To be called before a long run. Raises UsageError without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--save-plot needs matplotlib: pip install 'firelane[plot]'")


def save_plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write cumulative distributions, tokens a second and requests under way to `path`; its suffix chooses
    the format (png, svg, pdf)."""
    require_matplotlib()
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    good = [o for o in outcomes if not o.error]
    figure = Figure(figsize=(10, 7), layout="constrained")
    (first, gaps), (tokens, running) = figure.subplots(2, 2)
    _distribution(first, "time to first token (ms)", [o.ttft_s * 1e3 for o in good])
    _distribution(gaps, "inter-token latency (ms)", [gap * 1e3 for o in good for gap in o.gaps_s])
    by_second = tokens_by_second(good)
    tokens.step(range(len(by_second)), by_second, where="post")
    tokens.set(xlabel="time (s)", ylabel="output tokens a second", ylim=(0, None))
    running.step(*running_over_time(good), where="post")
    running.set(xlabel="time (s)", ylabel="requests under way", ylim=(0, None))
    for axes in figure.axes:
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(path)


def _distribution(axes: Any, title: str, values: list[float]) -> None:
    ordered = sorted(values)
    axes.plot(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))])
    axes.set(xlabel=title, ylabel="share of all", xscale="log", ylim=(0, 1))
