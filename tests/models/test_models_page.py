"""docs/models.md against the files of the families: none is missing, and the lines are counted right."""

from __future__ import annotations

import re
from pathlib import Path

import firelane.models
from firelane.models.registry import architectures

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<names>`.*?`) \| `(?P<file>\w+\.py)` \| (?P<lines>\d+) \|", re.MULTILINE)
MAX_LINES = 120


def rows() -> list[re.Match[str]]:
    return list(ROW.finditer((ROOT / "docs/models.md").read_text(encoding="utf-8")))


def test_every_architecture_has_a_row() -> None:
    named = [name for row in rows() for name in re.findall(r"`([^`]+)`", row["names"])]
    assert sorted(named) == architectures()


def test_families_are_small() -> None:
    for row in rows():
        (path,) = Path(firelane.models.__path__[0], "families").rglob(row["file"])
        source = path.read_text(encoding="utf-8")
        assert len(source.splitlines()) == int(row["lines"]), (
            f"{row['file']}: correct its row in docs/models.md"
        )
        assert int(row["lines"]) <= MAX_LINES
