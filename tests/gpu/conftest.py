"""Fixtures that tests on a GPU have in common."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of kernels, compiled once for all workers if FIRELANE_CACHE_DIR says so."""
    named = os.environ.get("FIRELANE_CACHE_DIR")
    return Path(named) if named else tmp_path_factory.mktemp("cache")
