"""These tests check what the compiler made of attention for sm_90, as compiled_attention.py prints it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)  # the first run compiles


@pytest.fixture(scope="module")
def compiled(compiler: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    return compiler("compiled_attention")


def test_a_rows_scores_lie_alike_in_both_paths(compiled: dict[str, dict[str, Any]]) -> None:
    shapes = {name.split(" ", 1)[1] for name in compiled}
    assert shapes
    for shape in shapes:
        decoded, tiles = compiled[f"attend_splits {shape}"], compiled[f"attend_tiles {shape}"]
        assert len(decoded["layouts"]) == 1, shape
        assert decoded["layouts"] == tiles["layouts"], shape


def test_all_programs_of_a_decoding_step_run_at_once(compiled: dict[str, dict[str, Any]]) -> None:
    for name, facts in compiled.items():
        if name.startswith("attend_splits") and "float32" not in name:
            assert facts["launched"] <= facts["resident"], name
