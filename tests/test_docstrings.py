"""Docstrings are sentences that can be read alone, without the name above them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DIRECTORIES = ("benchmarks", "firelane", "fuzz", "integrations", "scripts", "tests", "tools")
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


def sources(directory: Path) -> list[Path]:
    """The Python files below a directory, with those that only a first line tells to be Python."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return [path for path in files if path.suffix == ".py" or (not path.suffix and is_script(path))]


def is_script(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline()
    return first.startswith(b"#!") and b"python" in first


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_docstrings_can_be_read_alone(directory: str) -> None:
    read = [
        (path, line, word)
        for path in sources(ROOT / directory)
        for line, word in beginnings(path.read_text(encoding="utf-8"))
    ]
    assert read
    found = [
        f"{path.relative_to(ROOT)}:{line}: begins with {word!r}"
        for path, line, word in read
        if word in NOT_ALONE
    ]
    assert not found, "\n".join(found)


def test_scripts_without_a_suffix_are_read(tmp_path: Path) -> None:
    for name, text in (
        ("a.py", ""),
        ("b", "#!/usr/bin/env python\n"),
        ("c", "#!/bin/sh\n"),
        ("d", "python\n"),
    ):
        (tmp_path / name).write_text(text)
    assert [path.name for path in sources(tmp_path)] == ["a.py", "b"]


def test_all_kinds_of_docstrings_are_found() -> None:
    source = '"""Of a module."""\nA = 1\n"""Those, too."""\nclass B:\n    """As a class."""\n'
    source += '    c: int\n    """See there."""\n    def f(self):\n        """What it gives."""\n'
    assert sorted(beginnings(source)) == [(1, "Of"), (3, "Those"), (5, "As"), (7, "See"), (9, "What")]
