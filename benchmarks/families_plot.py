"""The plot of benchmarks/results/families.md: tokens a second of one decoding sequence, by family, beside
what the memory's bandwidth allows.

    python benchmarks/families_plot.py [PAGE]

Reads the tables of the page that have a share of the bandwidth, and writes families.svg beside it: the same
bytes for the same page. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

PAGE = Path(__file__).parent / "results" / "families.md"
SHARES = ("decode 1 of bandwidth", "of the bandwidth, median", "of bandwidth")
RATES = ("decode 1, tok/s", "tok/s, median")
MILLISECONDS = "ms, median"
LABEL_WIDTH, BAR_WIDTH, TEXT_WIDTH, LINE, TOP = 300, 460, 190, 26, 44
MEASURED, LIMIT = "#2f6fb2", "#c9d8e8"
Row = dict[str, str]


@dataclass(frozen=True)
class Figure:
    """One measurement, in tokens a second."""

    label: str
    rate: float
    limit: float


def tables(page: str) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each table by their columns' names, with the chapter's heading."""
    heading, header, rows = "", list[str](), list[Row]()
    for line in [*page.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip().strip("`") for cell in line.strip("| ").split("|")]
            if not header:
                header = cells
            elif not re.fullmatch(r"[-:| ]+", line):
                rows.append(dict(zip(header, cells, strict=False)))
        elif header:
            yield heading, rows
            header, rows = [], []
        if line.startswith("## "):
            heading = line.removeprefix("## ")


def figures(page: str) -> list[Figure]:
    return [
        Figure(_label(heading, row), rate, rate / share)
        for heading, rows in tables(page)
        for row in rows
        if row.get("step", "decode 1") == "decode 1"
        if (share := _share(row)) and (rate := _rate(row))
    ]


def _share(row: Row) -> float:
    """0 where the table has none."""
    found = next((row[name] for name in SHARES if row.get(name)), "0%")
    return float(found.strip("*% ")) / 100


def _rate(row: Row) -> float:
    found = next((row[name] for name in RATES if row.get(name)), "")
    return float(found) if found else 1000 / float(row[MILLISECONDS]) if row.get(MILLISECONDS) else 0.0


def _label(heading: str, row: Row) -> str:
    parts = [row.get("shape", "") or heading]
    parts += [f"{row['context']} tokens"] if "context" in row else []
    return ", ".join([*parts, *([row["weights"]] if "weights" in row else [])])


def drawn(found: list[Figure]) -> str:
    """Draw the figures as SVG."""
    longest = max(figure.limit for figure in found)
    width, height = LABEL_WIDTH + BAR_WIDTH + TEXT_WIDTH, TOP + LINE * len(found) + 10
    body = [line for number, figure in enumerate(found) for line in _bar(number, figure, longest)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            '<text x="20" y="22">Decode of one sequence, tokens a second: '
            "measured (dark), and what the bandwidth of those minutes allows (light)</text>",
            *body,
            "</svg>\n",
        ]
    )


def _bar(number: int, figure: Figure, longest: float) -> list[str]:
    y = TOP + LINE * number
    text = f"{figure.rate:.1f} of {figure.limit:.1f} ({figure.rate / figure.limit:.0%})"
    limit, measured = (BAR_WIDTH * rate / longest for rate in (figure.limit, figure.rate))
    return [
        f'<text x="{LABEL_WIDTH - 10}" y="{y + 13}" text-anchor="end">{escape(figure.label)}</text>',
        f'<rect x="{LABEL_WIDTH}" y="{y}" width="{limit:.1f}" height="18" fill="{LIMIT}"/>',
        f'<rect x="{LABEL_WIDTH}" y="{y}" width="{measured:.1f}" height="18" fill="{MEASURED}"/>',
        f'<text x="{LABEL_WIDTH + limit + 8:.1f}" y="{y + 13}">{text}</text>',
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, nargs="?", default=PAGE, metavar="PAGE")
    page: Path = parser.parse_args().page
    found = figures(page.read_text(encoding="utf-8"))
    if not found:
        raise SystemExit(f"{page}: no table has a share of the bandwidth: give the page of families")
    page.with_suffix(".svg").write_text(drawn(found), encoding="utf-8")


if __name__ == "__main__":
    main()
