"""Kernels run in Triton's interpreter, mended and watched (interpreter.py, checker.py), or on a GPU
(on_gpu.py) where TRITON_INTERPRET=0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.backends.cuda.host_device import HostDevice

if find_spec("triton") is None:  # there are none but for Linux
    collect_ignore_glob = ["test_*.py"]
elif os.environ["TRITON_INTERPRET"] == "1":
    from tests.backends.cuda import checker, interpreter

    interpreter.install()
    checker.install()
else:
    from tests.backends.cuda import on_gpu

    on_gpu.install()


@pytest.fixture
def host_device() -> HostDevice:
    return HostDevice()


@pytest.fixture(scope="session")
def compiler(pytestconfig: pytest.Config) -> Callable[..., Any]:
    """compiler(module, *arguments): the JSON that a module of this directory prints in a process of its own,
    which compiles where this one interprets. Compiled kernels are kept in pytest's cache directory."""
    environment = {"TRITON_CACHE_DIR": str(pytestconfig.cache.mkdir("firelane-triton")), **os.environ}
    environment.pop("TRITON_INTERPRET", None)
    root = Path(__file__).parents[3]

    def run(module: str, *arguments: str) -> Any:
        command = [sys.executable, "-m", f"tests.backends.cuda.{module}", *arguments]
        result = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False
        )
        assert result.stdout, result.stderr
        return json.loads(result.stdout)

    return run
