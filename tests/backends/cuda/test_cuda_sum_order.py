"""A row's sum has one order on a device, where the compiler decides who adds what: whether its value comes
whole or in parts, in a bucket of any size. See sum_orders.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Groups = list[list[tuple[str, list[str]]]]
pytestmark = pytest.mark.timeout(900)  # the first run compiles


@pytest.fixture(scope="module")
def groups(compiler: Callable[..., Any]) -> Groups:
    return compiler("sum_orders")


def test_readers_of_one_value_sum_in_the_same_order(groups: Groups) -> None:
    for group in groups:
        assert len(group) > 1
        first, want = group[0]
        assert want, f"{first} sums nothing"
        for name, sums in group[1:]:
            assert sums == want, f"{name} and {first} sum in different orders"


def test_layouts_are_spelled_out(groups: Groups) -> None:
    """Names of layouts would be equal where layouts are not."""
    assert all("sizePerThread" in s for group in groups for _, sums in group for s in sums)
