"""Every kernel compiles for sm_90 at the shapes of real models, without spills; see compile_kernels.py.

A case of each kind of kernel, because compiling takes time; scripts/gpu_compile, which CI runs, has all of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends.cuda.compile_driver import Case, Resources

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
    assert len({report["kernel"] for report in reports}) > 15


def test_products_of_every_form_are_spread_alike_over_the_warps(reports: list[dict[str, Any]]) -> None:
    """The two products of a turn of the loop, too: their sums stay in registers."""
    spread = {r["name"]: r["resources"]["layouts"] for r in reports if r["file"] in ("linear", "attention")}
    products = {
        name: layouts for name, layouts in spread.items() if not name.startswith(("merge", "turn", "decode"))
    }
    assert len(products) > 9
    assert {name: layouts for name, layouts in products.items() if len(layouts) != 1} == {}


def test_several_layouts_of_products_are_a_problem() -> None:
    resources = Resources(
        registers=1, stack=0, local=0, shared=0, warps=8, layouts=("[4, 2]", "[8, 1]"), found=()
    )
    assert resources.problems(Case(name="any", launch=None)) == ["products in layouts [4, 2], [8, 1]"]
