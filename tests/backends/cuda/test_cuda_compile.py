"""Every kernel compiles for sm_90 at the shapes of real models, without spills; see compile_kernels.py.

A case of each kernel, because compiling takes time; scripts/gpu_compile, which CI runs, has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)  # the first run compiles
STEMS = sorted({path.stem for path in (Path(__file__).parent / "compile_cases").glob("*.py")} - {"model"})


@pytest.fixture(scope="module")
def reports(compiler: Callable[..., Any]) -> list[dict[str, Any]]:
    return compiler("compile_kernels", "--json", "--each", "1", *STEMS)


@pytest.mark.parametrize("file", STEMS)
def test_kernels_compile_without_spills(reports: list[dict[str, Any]], file: str) -> None:
    of_file = [report for report in reports if report["file"] == file]
    assert of_file, f"compile_cases/{file}.py has no cases"
    assert {r["name"]: r["problems"] for r in of_file if r["problems"]} == {}


def test_there_is_a_case_of_every_kernel(reports: list[dict[str, Any]]) -> None:
    kernels = [report["kernel"] for report in reports]
    assert len(kernels) == len(set(kernels)) > 15
