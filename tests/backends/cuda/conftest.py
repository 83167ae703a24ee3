"""Kernels run in Triton's interpreter, mended and watched; see interpreter.py and checker.py."""

from __future__ import annotations

import os

import pytest

from tests.backends.cuda.host_device import HostDevice

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.backends.cuda import checker, interpreter

    interpreter.install()
    checker.install()


@pytest.fixture
def host_device() -> HostDevice:
    return HostDevice()
