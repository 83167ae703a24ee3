"""Pages of a device as bytes: copied in and out beside the steps, and not while their memory is away."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from firelane.backends.cuda.device.device import WAIT_LIMIT_S
from firelane.backends.cuda.device_pages import CopyGate, DevicePages
from firelane.errors import MachineError, OutOfMemoryError
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.late_device import LateDevice

PAGES, ELEMENTS = 5, 12


@pytest.fixture
def pool() -> torch.Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(0, 1 << 15, (PAGES, ELEMENTS), np.int16)).view(torch.bfloat16)


def pages_on(device: HostDevice, pool: torch.Tensor, gate: CopyGate | None = None) -> DevicePages:
    return DevicePages(device, pool, "x", gate or CopyGate())


def whole(pool: torch.Tensor) -> np.ndarray:
    return pool.view(torch.uint8).numpy()


@pytest.mark.parametrize("device", [HostDevice(), LateDevice()], ids=["at once", "late"])
@pytest.mark.parametrize(("first", "nbytes"), [(0, 24), (0, 5), (7, 17), (23, 1)])
def test_bytes_of_pages(device: HostDevice, pool: torch.Tensor, first: int, nbytes: int) -> None:
    pages, before = pages_on(device, pool), whole(pool).copy()
    assert (pages.num_pages, pages.page_bytes, pages.pages, pages.fd) == (PAGES, 24, None, -1)
    into = pages.buffer(3)[:2, :nbytes].copy()
    assert pages.read([3, 0], into, first)
    assert (into == before[[3, 0], first : first + nbytes]).all()
    assert pages.write([1, 4], ~into, first)
    before[[1, 4], first : first + nbytes] = ~into
    assert (whole(pool) == before).all(), "these bytes, and no others"


def test_a_buffer_is_for_whole_pages(pool: torch.Tensor) -> None:
    buffer = pages_on(HostDevice(), pool).buffer(2)
    assert (buffer.shape, buffer.dtype, buffer.flags.c_contiguous) == ((2, 24), np.uint8, True)


def test_where_nothing_more_can_be_pinned_copies_are_slower(
    pool: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    class Unpinned(HostDevice):
        def pinned(self, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            raise OutOfMemoryError(f"pinning {shape} of {dtype}")

    pages = pages_on(Unpinned(), pool)
    buffer = pages.buffer(2)
    assert pages.read([4, 1], buffer)
    assert (buffer == whole(pool)[[4, 1]]).all()
    assert "kv_copy_not_pinned" in caplog.text


class HeldUp(HostDevice):
    """Copies end when they are let go."""

    def __init__(self, error: str = "") -> None:
        super().__init__()
        self.begun, self.go_on, self.error = threading.Event(), threading.Event(), error

    def copy_beside(self, copies):  # type: ignore[override]
        super().copy_beside(copies)
        self.begun.set()
        return self

    def wait(self, limit_s=WAIT_LIMIT_S, given_up=lambda: "") -> None:
        del limit_s, given_up
        assert self.go_on.wait(60)
        if self.error:
            raise MachineError(self.error)


def test_memory_stays_until_a_copy_has_ended(pool: torch.Tensor) -> None:
    device, gate, ended = HeldUp(), CopyGate(), []
    pages, into = pages_on(device, pool, gate), np.zeros((1, 24), np.uint8)
    copying = threading.Thread(target=lambda: ended.append(("copy", pages.read([2], into))))
    closing = threading.Thread(target=lambda: (gate.close(), ended.append(("closed", True))))
    copying.start()
    assert device.begun.wait(60)
    closing.start()
    while pages.read([], into[:0]):  # until the gate is closed, which is not done yet
        pass
    assert not ended
    device.go_on.set()
    copying.join()
    closing.join()
    assert sorted(ended) == [("closed", True), ("copy", True)]
    assert (into[0] == whole(pool)[2]).all()


def test_nothing_is_copied_while_the_memory_is_away(pool: torch.Tensor) -> None:
    gate, into = CopyGate(), np.zeros((1, 24), np.uint8)
    pages, before = pages_on(HostDevice(), pool, gate), whole(pool).copy()
    gate.close()
    gate.close()
    assert not pages.read([2], into)
    assert not pages.write([2], into)
    assert not into.any()
    assert (whole(pool) == before).all()
    gate.open()
    assert pages.read([2], into)
    assert (into[0] == before[2]).all()


def test_a_device_that_fails_has_no_pages(pool: torch.Tensor, caplog: pytest.LogCaptureFixture) -> None:
    device = HeldUp("the GPU is gone")
    device.go_on.set()
    assert not pages_on(device, pool).read([1], np.zeros((1, 24), np.uint8))
    assert "the GPU is gone" in caplog.text
