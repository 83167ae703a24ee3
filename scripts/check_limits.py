"""Holds the house limits over the Python sources: reports what passes the soft limit, fails on the hard one.

    what                                   soft   hard
    lines in a file                         400    600
    lines in a function                      40     60
    arguments (fields of an op kind)          7     10
    base classes                              1      1

A generated table or a kernel may say why it is exempt: `# limits: exempt (reason)` on the line of the `def`
or `class`, or within the first five lines of the file for its length. Usage: check_limits.py [DIRECTORY ...]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ("firelane", "integrations", "scripts", "fuzz", "benchmarks", "tools", "tests")
EXEMPT = re.compile(r"#\s*limits: exempt \(\S.*\)")
FILE, FUNCTION, ARGUMENTS, BASES = (400, 600), (40, 60), (7, 10), (1, 1)
# A Protocol or Generic[...] beside a base speaks to the type checker; it is not a second parent.
TYPING_ONLY = {"Protocol", "Generic"}


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    what: str
    size: int
    soft: int
    hard: int

    @property
    def fatal(self) -> bool:
        return self.size > self.hard

    def __str__(self) -> str:
        limit = f"hard limit {self.hard}" if self.fatal else f"soft limit {self.soft}"
        return f"{self.path}:{self.line}: {self.what}: {self.size} ({limit})"


def check_source(path: Path, text: str, *, op_kind: bool = False) -> Iterator[Finding]:
    """Findings in one file. `op_kind`: fields of its dataclasses count as arguments."""
    lines = text.splitlines()
    if not any(EXEMPT.search(line) for line in lines[:5]):
        yield from _over(path, 1, "lines in file", len(lines), FILE)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _check_function(path, node, lines)
        elif isinstance(node, ast.ClassDef):
            yield from _check_class(path, node, lines, op_kind=op_kind)


def _check_function(
    path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]
) -> Iterator[Finding]:
    if _exempt(node, lines):
        return
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    yield from _over(path, node.lineno, f"lines in {node.name}", length, FUNCTION)
    given = node.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names = [n for n in names if n not in ("self", "cls")]
    yield from _over(path, node.lineno, f"arguments of {node.name}", len(names), ARGUMENTS)


def _check_class(path: Path, node: ast.ClassDef, lines: list[str], *, op_kind: bool) -> Iterator[Finding]:
    if _exempt(node, lines):
        return
    bases = [b for b in node.bases if _base_name(b) not in TYPING_ONLY]
    yield from _over(path, node.lineno, f"bases of {node.name}", len(bases), BASES)
    if op_kind:
        fields = sum(isinstance(n, ast.AnnAssign) for n in node.body)
        yield from _over(path, node.lineno, f"fields of {node.name}", fields, ARGUMENTS)


def _over(path: Path, line: int, what: str, size: int, limit: tuple[int, int]) -> Iterator[Finding]:
    soft, hard = limit
    if size > soft:
        yield Finding(path, line, what, size, soft, hard)


def _exempt(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, lines: list[str]) -> bool:
    first_statement = node.body[0].lineno
    return any(EXEMPT.search(line) for line in lines[node.lineno - 1 : first_statement])


def _base_name(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def check_tree(directories: list[Path]) -> list[Finding]:
    found: list[Finding] = []
    for directory in directories:
        for path in sorted(directory.rglob("*.py")):
            shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            op_kind = shown.parts[:3] == ("firelane", "program", "ops")
            found += check_source(shown, path.read_text(), op_kind=op_kind)
    return found


def main(arguments: list[str]) -> int:
    directories = [Path(a).resolve() for a in arguments] or [ROOT / d for d in DEFAULT if (ROOT / d).is_dir()]
    found = check_tree(directories)
    for finding in sorted(found, key=lambda f: f.fatal):
        print(finding)
    return 1 if any(f.fatal for f in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
