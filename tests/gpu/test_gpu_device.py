"""CudaDevice on a GPU: graphs, pinned memory, and how its failures are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from firelane.backends.cuda.device.faults import translated
from firelane.backends.cuda.device.launch import Launch
from firelane.errors import CompilerError, OutOfMemoryError

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = """
import torch
from firelane.backends.cuda.cuda_device import CudaDevice
from firelane.backends.cuda.device.faults import translated
from firelane.errors import MachineError
from tests.gpu.test_gpu_device import Launch, store_kernel

device = CudaDevice()
x = device.zeros(4)
try:
    with translated("running a step"):
        with device.on_stream():
            Launch(kernel=store_kernel, grid=(1,), arguments={"x": x, "at": 1 << 45}).run()
        device.mark().wait()
except MachineError as error:
    print(f"MachineError: {error}")
"""


@triton.jit
def add_one_kernel(x, out, n, BLOCK: tl.constexpr):  # noqa: N803 (a constant of the kernel)
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def store_kernel(x, at):
    tl.store(x + at, 1)


@triton.jit
def broken_kernel(x):
    tl.store(x, tl.arange(0, 16) + tl.arange(0, 32))


@pytest.fixture(scope="module")
def device():
    from firelane.backends.cuda.cuda_device import CudaDevice

    return CudaDevice()


def test_a_graph_does_again_what_was_captured(device) -> None:
    x = device.zeros(8)
    graph = device.capture(lambda: x.add_(1))
    for _ in range(3):
        graph.replay()
    device.mark().wait()
    assert x.tolist() == [4] * 8  # once before it was captured


def test_kernels_read_and_write_pinned_memory_in_place(device) -> None:
    source, target = device.pinned(5), device.pinned(5)
    launch = Launch(
        kernel=add_one_kernel, grid=(1,), arguments={"x": source, "out": target, "n": 5, "BLOCK": 8}
    )
    graph = device.capture(launch.run)
    source.copy_(torch.arange(5))
    graph.replay()
    device.mark().wait()
    assert target.tolist() == [1, 2, 3, 4, 5]


def test_uploads_end_when_their_fence_says_so(device) -> None:
    source = device.pinned(1 << 20)
    source.fill_(7)
    target = device.empty(1 << 20)
    device.upload(target, source).wait()
    source.fill_(0)
    assert bool((target == 7).all())


def test_more_memory_than_there_is(device) -> None:
    with pytest.raises(OutOfMemoryError, match="were asked for"):
        device.empty(1 << 45, dtype=torch.uint8)
    assert device.zeros(4).tolist() == [0] * 4


def test_a_kernel_that_does_not_compile(device) -> None:
    launch = Launch(kernel=broken_kernel, grid=(1,), arguments={"x": device.zeros(32)})
    with (
        pytest.raises(CompilerError, match="kernel broken_kernel failed to compile"),
        translated("compiling", kernel=launch.name),
    ):
        launch.compile()


def test_an_access_to_memory_that_is_not_ours() -> None:
    """In a process of its own: it cannot use the GPU afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", OUTSIDE], capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    assert done.stdout.startswith("MachineError: the GPU failed while running a step:"), done.stderr
    assert "dmesg" in done.stdout
