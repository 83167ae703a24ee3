"""Checkpoints are tested here, not kernels: both models of a comparison have the same ones."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _unoptimised(unoptimised: None) -> None:
    del unoptimised
