"""The plot of a serving benchmark: distributions of time to first token and of inter-token latency."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from firelane.bench.client import Outcome
from firelane.errors import UsageError


def require_matplotlib() -> None:
    """To be called before a long run. Raises UsageError without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--save-plot needs matplotlib: pip install 'firelane[plot]'")


def save_plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the cumulative distributions to `path`; its suffix chooses the format (png, svg, pdf)."""
    require_matplotlib()
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]

    good = [o for o in outcomes if not o.error]
    series = {
        "time to first token (ms)": [o.ttft_s * 1e3 for o in good],
        "inter-token latency (ms)": [gap * 1e3 for o in good for gap in o.gaps_s],
    }
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (title, values) in zip(figure.subplots(1, len(series)), series.items(), strict=True):
        ordered = sorted(values)
        axes.plot(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))])
        axes.set(xlabel=title, ylabel="share of all", xscale="log", ylim=(0, 1))
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(path)
