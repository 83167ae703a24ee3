"""Docstrings of the package are sentences that can be read alone, without the name above them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_ALONE = ("Of", "As", "What", "See", "Those", "Who", "How", "Where")
"""Words at the beginning of docstrings that need the name above to be understood."""


def beginnings(source: str) -> Iterator[tuple[int, str]]:
    """The line and the first word of each docstring, those below constants and fields included."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                words = str(statement.value.value).split(maxsplit=1)
                if words:
                    yield statement.lineno, words[0].rstrip(",:")


def test_docstrings_can_be_read_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: begins with {word!r}"
        for path in sorted((ROOT / "firelane").rglob("*.py"))
        for line, word in beginnings(path.read_text(encoding="utf-8"))
        if word in NOT_ALONE
    ]
    assert not found, "\n".join(found)


def test_all_kinds_of_docstrings_are_found() -> None:
    source = '"""Of a module."""\nA = 1\n"""Those, too."""\nclass B:\n    """As a class."""\n'
    source += '    c: int\n    """See there."""\n    def f(self):\n        """What it gives."""\n'
    assert sorted(beginnings(source)) == [(1, "Of"), (3, "Those"), (5, "As"), (7, "See"), (9, "What")]
