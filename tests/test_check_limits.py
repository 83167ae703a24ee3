"""scripts/check_limits.py finds what it is for, and passes what is allowed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "check_limits.py"
spec = importlib.util.spec_from_file_location("check_limits", SCRIPT)
assert spec is not None
assert spec.loader is not None
limits = importlib.util.module_from_spec(spec)
# dataclass looks up the module of a class by name
sys.modules["check_limits"] = limits
spec.loader.exec_module(limits)


def function(lines: int, comment: str = "", arguments: str = "") -> str:
    return f"def f({arguments}):{comment}\n" + "    pass\n" * (lines - 1)


def fields(count: int) -> str:
    return "class Op:\n" + "".join(f"    f{i}: int\n" for i in range(count))


CASES = [
    pytest.param(function(40), False, [], id="function-40"),
    pytest.param(function(41), False, [False], id="function-41-is-soft"),
    pytest.param(function(61), False, [True], id="function-61-is-hard"),
    pytest.param(function(61, "  # limits: exempt (a generated table)"), False, [], id="exempt"),
    pytest.param(function(61, "  # limits: exempt ()"), False, [True], id="exempt-without-reason"),
    pytest.param(function(2, arguments="self, a, b, c, d, e, f, g"), False, [], id="arguments-7"),
    pytest.param(function(2, arguments="a, b, c, d, *, e, f, g, h"), False, [False], id="arguments-8"),
    pytest.param(function(2, arguments="a, b, c, d, e, f, g, h, i, j, k"), False, [True], id="arguments-11"),
    pytest.param("class A(B): ...\n", False, [], id="one-base"),
    pytest.param("class A(B, C): ...\n", False, [True], id="two-bases"),
    pytest.param("class A(Protocol[T], Generic[T], B): ...\n", False, [], id="protocol-is-no-base"),
    pytest.param(fields(11), True, [True], id="op-kind-11-fields"),
    pytest.param(fields(11), False, [], id="dataclass-elsewhere"),
    pytest.param("\n" * 401, False, [False], id="file-401"),
    pytest.param("\n" * 601, False, [True], id="file-601"),
    pytest.param("# limits: exempt (one table)\n" * 601, False, [], id="file-exempt"),
]


@pytest.mark.parametrize(("text", "op_kind", "fatal"), CASES)
def test_limits(text: str, op_kind: bool, fatal: list[bool]) -> None:
    found = list(limits.check_source(Path("x.py"), text, op_kind=op_kind))
    assert [f.fatal for f in found] == fatal


def test_finding_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text("\n" + function(61))
    assert limits.main([str(tmp_path)]) == 1
    assert "bad.py:2: lines in f: 61 (hard limit 60)" in capsys.readouterr().out


@pytest.mark.parametrize("directory", limits.DEFAULT)
def test_no_file_is_above_the_soft_limit(directory: str) -> None:
    """The tests are held to the limit like the package."""
    assert any((limits.ROOT / directory).rglob("*.py"))
    found = limits.check_tree([limits.ROOT / directory])
    assert [str(one) for one in found if one.what == "lines in file"] == []
