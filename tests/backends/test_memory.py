from __future__ import annotations

import pytest

from firelane.backends.cpu.memory import zeroed
from firelane.errors import OutOfMemoryError


def test_memory_that_the_system_refuses() -> None:
    with pytest.raises(OutOfMemoryError, match=r"131072\.0 GiB of memory cannot be had"):
        zeroed(1 << 47)


def test_memory_is_zero() -> None:
    assert not zeroed(100).any()
