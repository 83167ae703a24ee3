"""Every kernel compiles for sm_90 at the shapes of real models, without spills; see compile_kernels.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)  # the first run compiles
# Whole models take a minute; scripts/gpu_compile has them.
STEMS = sorted({path.stem for path in (Path(__file__).parent / "compile_cases").glob("*.py")} - {"model"})


@pytest.fixture(scope="module")
def reports(compiler: Callable[..., Any]) -> list[dict[str, Any]]:
    return compiler("compile_kernels", "--json", *STEMS)


@pytest.mark.parametrize("file", STEMS)
def test_kernels_compile_without_spills(reports: list[dict[str, Any]], file: str) -> None:
    of_file = [report for report in reports if report["file"] == file]
    assert of_file, f"compile_cases/{file}.py has no cases"
    assert {r["name"]: r["problems"] for r in of_file if r["problems"]} == {}


def test_cases_have_names_of_their_own(reports: list[dict[str, Any]]) -> None:
    names = [(report["file"], report["name"]) for report in reports]
    assert sorted(names) == sorted(set(names))
