"""What all tests share: where compiled kernels are kept, and whether CUDA kernels are interpreted or run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Triton decides when it is imported whether kernels are interpreted or compiled, and other tests' libraries
# (transformers) import it, too: so it must be said before any test module is. TRITON_INTERPRET=0 runs the
# tests of kernels, and those marked gpu, on the machine's GPU.
if os.environ.setdefault("TRITON_INTERPRET", "1") == "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # servers that tests start take the CPU on every machine


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked gpu are for a process that does not interpret, on a machine that has one."""
    of_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if of_gpu and not _gpu_is_used():
        config.hook.pytest_deselected(items=of_gpu)
        items[:] = [item for item in items if item not in of_gpu]


def _gpu_is_used() -> bool:
    if os.environ["TRITON_INTERPRET"] == "1":
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def kernel_cache(pytestconfig: pytest.Config) -> Path:
    """Compiled CPU kernels are kept in pytest's cache directory: a second run does not compile them again."""
    return Path(pytestconfig.cache.mkdir("firelane-kernels"))
