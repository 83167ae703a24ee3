"""HostDevice: memory is poisoned, a graph does its work again."""

from __future__ import annotations

import pytest
import torch

from firelane.backends.cuda.device.device import Device
from tests.backends.cuda.host_device import HostDevice, poison


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_memory_that_nobody_wrote_is_nan(host_device: HostDevice, dtype: torch.dtype) -> None:
    assert host_device.empty(3, 5, dtype=dtype).isnan().all()


def test_integers_that_nobody_wrote_are_far_off(host_device: HostDevice) -> None:
    assert host_device.empty(2, dtype=torch.int32).tolist() == [0x7F7F7F7F] * 2
    assert host_device.empty(2, dtype=torch.uint8).tolist() == [0x7F] * 2
    assert poison(torch.zeros(4, dtype=torch.int64))[1:3].tolist() == [0x7F7F7F7F7F7F7F7F] * 2


def test_zeros_and_pinned_are_zero(host_device: HostDevice) -> None:
    assert host_device.zeros(4).tolist() == host_device.pinned(4).tolist() == [0] * 4


def test_a_graph_does_its_work_again() -> None:
    device: Device = HostDevice()
    done: list[int] = []
    graph = device.capture(lambda: done.append(1))
    assert len(done) == 1
    graph.replay()
    assert len(done) == 2


def test_an_upload_is_done_at_once(host_device: HostDevice) -> None:
    target = host_device.empty(3)
    host_device.upload(target, torch.tensor([1, 2, 3], dtype=torch.int32)).wait()
    assert target.tolist() == [1, 2, 3]


def test_free_memory_falls_by_what_is_taken() -> None:
    device = HostDevice(memory_bytes=1000)
    device.empty(10)
    assert device.free_bytes() == 960
