"""Compiled kernels are kept in pytest's cache directory, so that a second run does not compile them again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Triton decides when it is imported whether kernels are interpreted or compiled, and other tests' libraries
# (transformers) import it, too: so it must be said before any test module is. A run on a GPU sets it to 0.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def kernel_cache(pytestconfig: pytest.Config) -> Path:
    return Path(pytestconfig.cache.mkdir("firelane-kernels"))
