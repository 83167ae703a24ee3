from __future__ import annotations

import sys

import pytest

from firelane.backends.cpu.memory import HUGE_PAGE_BYTES, shared_zeroed, zeroed
from firelane.errors import OutOfMemoryError, UsageError
from firelane.native.host_memory import available_bytes


def test_memory_that_the_system_refuses() -> None:
    with pytest.raises(OutOfMemoryError, match=r"131072\.0 GiB of memory cannot be had"):
        zeroed(1 << 47)


def test_memory_is_zero() -> None:
    assert not zeroed(100).any()


def test_a_system_without_what_linux_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert available_bytes() > 0
    assert zeroed(HUGE_PAGE_BYTES)[-1] == 0
    with pytest.raises(UsageError, match="kv_cache_memory = shared: only Linux"):
        shared_zeroed(100)
