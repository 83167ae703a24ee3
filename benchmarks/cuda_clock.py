"""Times on the GPU: work is captured in a graph, as a step is, and replayed between two events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from firelane.backends.cuda.cuda_device import CudaDevice
from firelane.backends.cuda.device import gpu_detection
from firelane.backends.cuda.device.device import Device

Work = Callable[[], None]


def open_device() -> CudaDevice:
    """The first GPU; this thread stays on its stream, so that events time its work. Raises MachineError,
    UsageError where it cannot be used."""
    gpu_detection.require(gpu_detection.detect())
    device = CudaDevice()
    device.on_stream().__enter__()
    return device


class Clock(Protocol):
    def seconds(self, work: Work, *, repeats: int = 10) -> float:
        """Return the seconds of one run of `work` on the device, when run after run is queued."""
        ...

    def host_seconds(self, work: Work, *, repeats: int = 100) -> float:
        """Return the seconds that the host takes to start `work`."""
        ...


@dataclass(frozen=True)
class GraphClock:
    """The median of `rounds` runs of events; what it times must not read what the host changes."""

    device: Device
    rounds: int = 5

    def seconds(self, work: Work, *, repeats: int = 10) -> float:
        graph = self.device.capture(work)
        graph.replay()
        return statistics.median(self._replayed(graph.replay, repeats) for _ in range(self.rounds))

    def eager_seconds(self, work: Work, *, repeats: int = 10) -> float:
        """For work that no graph can hold."""
        for _ in range(3):
            work()
        return statistics.median(self._replayed(work, repeats) for _ in range(self.rounds))

    def host_seconds(self, work: Work, *, repeats: int = 100) -> float:
        def once() -> float:
            torch.cuda.synchronize()
            began_s = time.perf_counter()
            for _ in range(repeats):
                work()
            return (time.perf_counter() - began_s) / repeats

        once()
        seconds = min(once() for _ in range(self.rounds))
        torch.cuda.synchronize()
        return seconds

    def _replayed(self, work: Work, repeats: int) -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(repeats):
            work()
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) / 1e3 / repeats


@dataclass(frozen=True)
class HostClock:
    """Times one run on a machine without a GPU, so that a benchmark's own code can be tried."""

    def seconds(self, work: Work, *, repeats: int = 10) -> float:
        del repeats
        began_s = time.perf_counter()
        work()
        return max(time.perf_counter() - began_s, 1e-9)

    def host_seconds(self, work: Work, *, repeats: int = 100) -> float:
        return self.seconds(work, repeats=repeats)
