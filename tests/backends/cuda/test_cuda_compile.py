"""Every kernel compiles for sm_90 at the shapes of real models, without spills; see compile_kernels.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(900)  # the first run compiles
# Whole models take a minute; scripts/gpu_compile has them.
STEMS = sorted({path.stem for path in (Path(__file__).parent / "compile_cases").glob("*.py")} - {"model"})


@pytest.fixture(scope="module")
def reports(pytestconfig: pytest.Config) -> list[dict[str, Any]]:
    """In a process of its own: this one interprets. Compiled kernels are kept for the next run."""
    cache = pytestconfig.cache.mkdir("firelane-triton")
    environment = {"TRITON_CACHE_DIR": str(cache), **os.environ}
    command = [sys.executable, "-m", "tests.backends.cuda.compile_kernels", "--json", *STEMS]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("file", STEMS)
def test_kernels_compile_without_spills(reports: list[dict[str, Any]], file: str) -> None:
    of_file = [report for report in reports if report["file"] == file]
    assert of_file, f"compile_cases/{file}.py has no cases"
    assert {r["name"]: r["problems"] for r in of_file if r["problems"]} == {}


def test_cases_have_names_of_their_own(reports: list[dict[str, Any]]) -> None:
    names = [(report["file"], report["name"]) for report in reports]
    assert sorted(names) == sorted(set(names))
