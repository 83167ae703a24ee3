"""Measures the GPU's limits, which the other GPU benchmarks are held against.

cuda_limits.py [--out DIR]

Copy and read of device memory, far beyond its cache; bf16 products of random numbers (zeros would draw less
power and give more); what a kernel costs when it does nothing, in a graph and started by the host; and copies
from pinned host memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from cuda_clock import Clock, GraphClock, open_device
from cuda_report import Table, parser, publish, run_main
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.launch import Launch

GIB = 1 << 30
NODES = 1000
READ_BLOCK = 8192


@triton.jit
def read_kernel(x, out, BLOCK: tl.constexpr, TURNS: tl.constexpr):  # noqa: N803 (constants of the kernel)
    """out[program] = the sum of its TURNS * BLOCK words."""
    at = tl.program_id(0).to(tl.int64) * (BLOCK * TURNS) + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for turn in range(TURNS):
        total += tl.load(x + at + turn * BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def nothing_kernel(x):
    if tl.program_id(0) < 0:
        tl.store(x, 0)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """copy_bytes: of one buffer; matmul: of the square matrices; nodes: of the graph of empty kernels."""

    copy_bytes: int = 4 * GIB
    pinned_bytes: int = GIB
    matmul: int = 8192
    nodes: int = NODES


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Rates in 1e9 bytes and 1e12 operations a second. A copy counts what is read and what is written."""

    copy_gbps: float
    read_gbps: float
    bf16_tflops: float
    pinned_gbps: float
    graph_node_us: float
    replay_us: float
    launch_us: float

    @property
    def memory_gbps(self) -> float:
        """The limit for kernels that move bytes: the better of copy and read."""
        return max(self.copy_gbps, self.read_gbps)

    def seconds(self, nbytes: float, flops: float) -> float:
        """The roofline: the shortest time for so many bytes and operations."""
        return max(nbytes / (self.memory_gbps * 1e9), flops / (self.bf16_tflops * 1e12))


def measure_limits(device: Device, clock: Clock, sizes: Sizes = Sizes()) -> Limits:
    copy_gbps, read_gbps = _memory_rates(device, clock, sizes)
    some = device.zeros(16)
    empty = Launch(kernel=nothing_kernel, grid=(1,), arguments={"x": some})
    one = device.capture(empty.run)
    return Limits(
        copy_gbps=copy_gbps,
        read_gbps=read_gbps,
        bf16_tflops=_matmul_rate(device, clock, sizes.matmul),
        pinned_gbps=_pinned_rate(device, clock, sizes.pinned_bytes),
        graph_node_us=clock.seconds(partial(_many, empty, sizes.nodes)) / sizes.nodes * 1e6,
        replay_us=clock.host_seconds(one.replay) * 1e6,
        launch_us=clock.host_seconds(empty.run) * 1e6,
    )


def _memory_rates(device: Device, clock: Clock, sizes: Sizes) -> tuple[float, float]:
    words = sizes.copy_bytes // 4
    source, target = device.zeros(words), device.zeros(words)
    copied_s = clock.seconds(lambda: _copy(target, source))
    turns = 16
    programs = words // (READ_BLOCK * turns)
    read = Launch(
        kernel=read_kernel,
        grid=(programs,),
        arguments={"x": source, "out": target, "BLOCK": READ_BLOCK, "TURNS": turns},
        warps=8,
    )
    read_s = clock.seconds(read.run)
    return 2 * source.nbytes / copied_s / 1e9, programs * READ_BLOCK * turns * 4 / read_s / 1e9


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _matmul_rate(device: Device, clock: Clock, n: int) -> float:
    a, b, out = (device.empty(n, n, dtype=torch.bfloat16).normal_() for _ in range(3))
    seconds = clock.seconds(lambda: _multiply(a, b, out))
    return 2 * n**3 / seconds / 1e12


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mm(a, b, out=out)


def _pinned_rate(device: Device, clock: Clock, nbytes: int) -> float:
    host, target = device.pinned(nbytes // 4), device.empty(nbytes // 4)
    return host.nbytes / clock.seconds(lambda: _copy(target, host), repeats=3) / 1e9


def _many(launch: Launch, count: int) -> None:
    for _ in range(count):
        launch.run()


def table(limits: Limits) -> Table:
    rows = [
        ["copy within device memory, read + written", f"{limits.copy_gbps:.0f} GB/s"],
        ["read of device memory", f"{limits.read_gbps:.0f} GB/s"],
        ["bf16 product, 8192 x 8192 x 8192", f"{limits.bf16_tflops:.0f} TFLOP/s"],
        ["copy from pinned host memory", f"{limits.pinned_gbps:.1f} GB/s"],
        ["kernel that does nothing, in a graph", f"{limits.graph_node_us:.2f} us"],
        ["host: replay of a graph", f"{limits.replay_us:.1f} us"],
        ["host: launch of a Triton kernel", f"{limits.launch_us:.1f} us"],
    ]
    return Table(title="Limits of the device", header=["limit", "measured"], rows=rows)


def main() -> None:
    arguments = parser(__doc__).parse_args()
    device = open_device()
    limits = measure_limits(device, GraphClock(device))
    publish("cuda_limits", [table(limits)], limits, arguments)


if __name__ == "__main__":
    run_main(main)
