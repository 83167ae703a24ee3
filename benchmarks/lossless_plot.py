"""The plot of benchmarks/lossless.py: bits of a weight by form, and speed-up over bf16 by rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lossless_figures import AUTO, BF16, LOSSLESS, Figures, best_ratio, median_ratio
from lossless_published import PUBLISHED

NAMES = {
    BF16: "bf16",
    LOSSLESS: "--weights lossless",
    AUTO: "--weights auto",
    "coded4": "12 bits, coded",
    "coded3": "11.2 bits, coded",
}
OWN_COLOR, OTHER_COLOR = "tab:blue", "tab:orange"


def save_plot(figures: Figures, path: Path) -> None:
    """SVG, the same bytes for the same figures. ImportError without matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "firelane"
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_bits(left, figures)
    draw_speed(right, figures)
    figure.savefig(path, format="svg", metadata={"Date": None})


def own_bits(figures: Figures) -> dict[str, float]:
    """Bits of a weight of what was measured."""
    bits = {"bf16": 16.0}
    if figures.at_rest is not None:
        bits["entropy (limit at rest)"] = figures.at_rest.limit_bits
        bits["at rest"] = 8 * figures.at_rest.packed_bytes / figures.at_rest.weights
    if figures.steps is not None:
        steps = figures.steps
        bits |= {
            NAMES.get(form, form): 8 * nbytes / steps.weights
            for form, nbytes in steps.resident_bytes.items()
            if form != BF16
        }
    return bits


def published_bits() -> dict[str, float]:
    found: dict[str, float] = {}
    for p in PUBLISHED:
        if p.bits_at_rest is not None and p.bits_at_rest != p.bits_in_memory:
            found[f"{p.name}, at rest"] = p.bits_at_rest
        if p.bits_in_memory is not None:
            found[f"{p.name}, in memory"] = p.bits_in_memory
    return found


def draw_bits(axes: Any, figures: Figures) -> None:
    own, others = own_bits(figures), published_bits()
    labels = [*own, *others]
    axes.barh(list(own), list(own.values()), color=OWN_COLOR, height=0.55)
    axes.plot(list(others.values()), list(others), "D", color=OTHER_COLOR, mfc="none", label="as published")
    for label, bits in (own | others).items():
        axes.annotate(f"{bits:.1f}", (bits, label), xytext=(7, 0), textcoords="offset points", va="center")
    axes.set(xlabel="bits per weight", xlim=(0, 18), title="Size")
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.legend(loc="lower left")


def draw_speed(axes: Any, figures: Figures) -> None:
    steps = [s for s in figures.steps.steps if not s.prefill] if figures.steps else []
    rows = [s.rows for s in steps]
    for form in steps[0].seconds if steps else ():
        if form != BF16:
            medians = [median_ratio(s.seconds[BF16], s.seconds[form]) for s in steps]
            (line,) = axes.plot(rows, medians, "o-", markersize=4, label=NAMES.get(form, form))
            best = [best_ratio(s.seconds[BF16], s.seconds[form]) for s in steps]
            axes.plot(rows, best, ":", color=line.get_color(), alpha=0.6)
    axes.axhline(1, color="gray", linewidth=1)
    axes.set(xlabel="rows (requests that decode together)", ylabel="speed, of bf16", title="Speed of a step")
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows, [str(n) for n in rows])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    if steps:
        axes.legend(title="median of rounds (dotted: best times)")
