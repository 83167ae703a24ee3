"""CudaDevice: an NVIDIA GPU through PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import WAIT_LIMIT_S, Fence, Graph, Shared, StageLink
from firelane.backends.cuda.device.faults import translated
from firelane.backends.cuda.peers import RankPeers
from firelane.errors import MachineError

POLL_S = 50e-6
DRAIN_LIMIT_S = 5.0


class CudaFence:
    """A device.Fence: an event of the stream, polled, so that a wait has an end and signals are heard."""

    __slots__ = ("_event",)

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self, limit_s: float = WAIT_LIMIT_S, given_up: Callable[[], str] = lambda: "") -> None:
        deadline_s = time.monotonic() + limit_s
        while not self._event.query():
            if why := given_up():
                raise MachineError(why)
            if time.monotonic() > deadline_s:
                raise MachineError(
                    f"the GPU has not ended its work within {limit_s:g} s; this process cannot use it any "
                    "more: look at nvidia-smi, and at `dmesg | grep -i xid` for a fault of the hardware"
                )
            time.sleep(POLL_S)


class CudaGraph:
    """A device.Graph, launched on the device's stream from whatever thread."""

    __slots__ = ("_graph", "_stream")

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
        self._graph, self._stream = graph, stream

    def replay(self) -> None:
        with torch.cuda.stream(self._stream):
            self._graph.replay()


class CudaDevice:
    """GPU `index` of this process. Owns a stream, another one for copies beside it, and the memory pool of
    the graphs; the memory itself belongs to the tensors. The stream that a thread is on is left as it is:
    several devices may live in one thread, and one be used from several."""

    def __init__(self, index: int | None = None, peers: RankPeers | None = None) -> None:
        """index: None for the thread's current one, which is the first where none was chosen. peers: the
        other ranks, of one of several. Raises MachineError where the GPU cannot be used."""
        self._peers = peers
        with translated("opening the GPU"):
            self._device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
            self._properties = torch.cuda.get_device_properties(self._device)
            self._stream = torch.cuda.Stream(self._device)
            self._beside = torch.cuda.Stream(self._device)
            self._pool = torch.cuda.graph_pool_handle()

    @property
    def name(self) -> str:
        return str(self._properties.name)

    @property
    def arithmetic(self) -> str:
        """Its compute capability: matrix instructions of another one add up in another way."""
        return f"sm_{self._properties.major}{self._properties.minor}"

    @property
    def num_sms(self) -> int:
        return int(self._properties.multi_processor_count)

    def on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def empty(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        with translated(f"placing {shape} of {dtype}"), self.on_stream():
            return torch.empty(shape, dtype=dtype, device=self._device)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        with translated(f"placing {shape} of {dtype}"), self.on_stream():
            return torch.zeros(shape, dtype=dtype, device=self._device)

    def pinned(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        with translated("pinning host memory"):
            return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def register(self, address: int, nbytes: int) -> None:
        with translated("pinning host memory"), self.on_stream():
            runtime: Any = torch.cuda.cudart()
            error = int(runtime.cudaHostRegister(address, nbytes, 0))
        if error:
            raise MachineError(f"the driver does not pin {nbytes} bytes of shared memory (error {error})")

    def shared(self, nbytes: int, *, ranks: int) -> Shared:
        assert self._peers is not None, "a program of ranks on a device that has no peers"
        assert self._peers.layout.lanes == ranks, f"{ranks} ranks of {self._peers.layout}"
        with translated("sharing memory with the other GPUs"), self.on_stream():
            return self._peers.share(nbytes)

    def stage_link(self, nbytes: int, *, received: int) -> StageLink:
        assert self._peers is not None, "a program of stages on a device that has no peers"
        with translated("connecting stages on several GPUs"), self.on_stream():
            return self._peers.link_stages(nbytes, received)

    def upload(self, target: Tensor, source: Tensor) -> Fence:
        with self.on_stream():
            target.copy_(source, non_blocking=True)
        return self.mark()

    def copy_beside(self, copies: Sequence[tuple[Tensor, Tensor]]) -> Fence:
        with torch.cuda.stream(self._beside):
            for target, source in copies:
                target.copy_(source, non_blocking=True)
            return _marked(self._beside)

    def capture(self, work: Callable[[], None]) -> Graph:
        with self.on_stream():
            work()  # compiles and loads what is not yet there, which a capture may not
            self.mark().wait()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):  # what ends the capture early is what matters
                    graph.capture_end()
                raise
            graph.capture_end()
        return CudaGraph(graph, self._stream)

    def mark(self) -> Fence:
        return _marked(self._stream)

    def free_bytes(self) -> int:
        self.trim()
        return int(torch.cuda.mem_get_info(self._device)[0])

    def drain(self) -> bool:
        try:
            self.mark().wait(DRAIN_LIMIT_S)
        except (RuntimeError, MachineError):
            return False
        return True

    def trim(self) -> None:
        torch.cuda.empty_cache()
        self._pool = torch.cuda.graph_pool_handle()  # one whose graphs have gone cannot be used again


def _marked(stream: torch.cuda.Stream) -> Fence:
    event = torch.cuda.Event()
    event.record(stream)
    return CudaFence(event)
