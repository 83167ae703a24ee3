"""Docstrings of the package are sentences that can be read alone, without the name above them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_ALONE = ("Of", "As", "What", "See")
"""Words at the beginning of docstrings that need the name above to be understood."""


def beginnings(source: str) -> Iterator[tuple[int, str]]:
    """The line and the first word of each docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split(maxsplit=1)
            if words:
                yield getattr(node, "lineno", 1), words[0]


def test_docstrings_can_be_read_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: begins with {word!r}"
        for path in sorted((ROOT / "firelane").rglob("*.py"))
        for line, word in beginnings(path.read_text(encoding="utf-8"))
        if word in NOT_ALONE
    ]
    assert not found, "\n".join(found)


def test_all_kinds_of_docstrings_are_found() -> None:
    source = '"""Of a module."""\nclass A:\n    """As a class."""\n    def f(self):\n        """What it."""\n'
    assert list(beginnings(source)) == [(1, "Of"), (2, "As"), (4, "What")]
