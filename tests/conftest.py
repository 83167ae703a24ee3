"""Compiled kernels are kept in pytest's cache directory, so that a second run does not compile them again."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kernel_cache(pytestconfig: pytest.Config) -> Path:
    return Path(pytestconfig.cache.mkdir("firelane-kernels"))
