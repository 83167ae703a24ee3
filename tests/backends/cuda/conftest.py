"""Kernels run in Triton's interpreter, mended and watched (interpreter.py, checker.py), or on a GPU
(on_gpu.py) where TRITON_INTERPRET=0."""

from __future__ import annotations

import os
from importlib.util import find_spec

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
