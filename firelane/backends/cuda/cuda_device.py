"""CudaDevice: an NVIDIA GPU through PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from firelane.backends.cuda.device import Fence, Graph
from firelane.backends.cuda.faults import translated


class CudaFence:
    """A device.Fence: an event of the stream."""

    __slots__ = ("_event",)

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


class CudaDevice:
    """GPU `index` of this process. Owns one stream, the memory pool of the graphs, and the event that ends a
    step; the memory itself belongs to the tensors."""

    def __init__(self, index: int = 0) -> None:
        """Raises MachineError where the GPU cannot be used."""
        with translated("opening the GPU"):
            self._device = torch.device("cuda", index)
            torch.cuda.set_device(self._device)
            self._properties = torch.cuda.get_device_properties(self._device)
            self._stream = torch.cuda.Stream(self._device)
            torch.cuda.set_stream(self._stream)
            self._pool = torch.cuda.graph_pool_handle()
            self._end = torch.cuda.Event(blocking=True)

    @property
    def name(self) -> str:
        return str(self._properties.name)

    @property
    def num_sms(self) -> int:
        return int(self._properties.multi_processor_count)

    def empty(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        with translated(f"placing {shape} of {dtype}"):
            return torch.empty(shape, dtype=dtype, device=self._device)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        with translated(f"placing {shape} of {dtype}"):
            return torch.zeros(shape, dtype=dtype, device=self._device)

    def pinned(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        with translated("pinning host memory"):
            return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def upload(self, target: Tensor, source: Tensor) -> Fence:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            end = torch.cuda.Event(blocking=True)
            end.record(self._stream)
        return CudaFence(end)

    def capture(self, work: Callable[[], None]) -> Graph:
        work()  # compiles and loads what is not yet there, which a capture may not
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with suppress(RuntimeError):  # what ends the capture early is what matters
                graph.capture_end()
            raise
        graph.capture_end()
        return graph

    def mark(self) -> None:
        self._end.record(self._stream)

    def wait(self) -> None:
        self._end.synchronize()

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self._device)[0])

    def release(self) -> None:
        """Raises nothing: after a fault nothing is left to release, and its error must not be hidden."""
        with suppress(RuntimeError):
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
