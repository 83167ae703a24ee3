"""A row's sum has one order on a device, where the compiler decides who adds what: whether its value comes
whole or in parts, in a bucket of any size. See sum_orders.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def groups(pytestconfig: pytest.Config) -> list[list[tuple[str, list[str]]]]:
    """In a process of its own: this one interprets."""
    cache = pytestconfig.cache.mkdir("firelane-triton")
    environment = {"TRITON_CACHE_DIR": str(cache), **os.environ}
    command = [sys.executable, "-m", "tests.backends.cuda.sum_orders"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_readers_of_one_value_sum_in_the_same_order(groups):
    for group in groups:
        assert len(group) > 1
        first, want = group[0]
        assert want, f"{first} sums nothing"
        for name, sums in group[1:]:
            assert sums == want, f"{name} and {first} sum in different orders"


def test_layouts_are_spelled_out(groups):
    """Names of layouts would be equal where layouts are not."""
    assert all("sizePerThread" in s for group in groups for _, sums in group for s in sums)
