"""Markdown tables and percentiles for benchmark output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firelane.errors import UsageError


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that also lines up as plain text: first column left, the others right."""
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    ruler = "|" + "|".join("-" * (w + 1) + ("-" if i == 0 else ":") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(header), ruler, *(line(r) for r in rows)])


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; nan of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def write_json(path: Path, figures: Any) -> None:
    """Dataclasses, dicts and lists as JSON. Raises UsageError when `path` cannot be written."""
    import msgspec  # tables alone do without it

    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
