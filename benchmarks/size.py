"""The size of the package: lines of Python, the median and the longest file. `python benchmarks/size.py`"""

from __future__ import annotations

import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def sizes(directory: Path) -> dict[Path, int]:
    """Lines by file."""
    return {path: len(path.read_text().splitlines()) for path in sorted(directory.rglob("*.py"))}


def report(name: str) -> str:
    lines = sizes(ROOT / name)
    longest = max(lines, key=lambda path: lines[path])
    return (
        f"{name}: {sum(lines.values())} lines in {len(lines)} files, "
        f"median {statistics.median(lines.values()):g}, "
        f"longest {lines[longest]} ({longest.relative_to(ROOT)})"
    )


if __name__ == "__main__":
    for package in ("firelane", "tests"):
        print(report(package))
