"""Device: what the executor needs of a machine with memory, streams and graphs. CudaDevice is the real one;
tests put the interpreter or a compiler in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from firelane.backends.cuda.device.launch import Work

WAIT_LIMIT_S = 60.0
"""After which work on a device is taken to hang."""


class Graph(Protocol):
    """A captured run of launches."""

    def replay(self) -> None:
        """Start it on the device's stream; returns at once."""
        ...


class Fence(Protocol):
    """The end of something that was started."""

    def wait(self, limit_s: float = WAIT_LIMIT_S, given_up: Callable[[], str] = lambda: "") -> None:
        """Sleep until then (the GIL is released); safe from any thread. given_up: why it will not come, once
        that is known. Raises MachineError where it takes longer than the limit or is given up, or the device
        reports a failure."""
        ...


class Shared(Protocol):
    """Memory of one size on each of several ranks, which all of them can read."""

    @property
    def mine(self) -> Tensor:
        """This rank's: uint8."""
        ...

    def meeting(self, first: int, nbytes: int) -> tuple[Work, tuple[Tensor, ...]]:
        """Work that ends when all ranks have come to it in their streams, and so many bytes from `first` on
        of each rank, in their order: what lay there then. They may be written again, and the next such work
        started, behind what reads them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Rows on their way from one stage of a pipeline to the next. memory: uint8, theirs while they move.
    before: work after which `memory` may be written (by the sender) or read (by the receiver); after: work
    that says that it was."""

    before: Work
    memory: Tensor
    after: Work


class StageLink(Protocol):
    """Rows of a rank to that of the next stage, and from that of the stage before. Transfers have
    numbers from 0 on; each ends before that of the same number begins again."""

    def send(self, number: int, first: int, nbytes: int) -> Transfer:
        """Send so many bytes, from `first` on in the memory of this link."""
        ...

    def receive(self, number: int, first: int, nbytes: int) -> Transfer:
        """Receive bytes that the stage before sends with the same numbers."""
        ...


class Device(Protocol):
    """One device. All work goes to one stream, in order, whatever thread starts it, but for `copy_beside`."""

    @property
    def name(self) -> str: ...

    @property
    def arithmetic(self) -> str:
        """The kind of device, as contract.Executor.arithmetic."""
        ...

    @property
    def num_sms(self) -> int:
        """Multiprocessors; only how work is spread may depend on it, never a result."""
        ...

    def on_stream(self) -> AbstractContextManager[object]:
        """Launches, and PyTorch's work on the device's tensors, go to its stream inside this context."""
        ...

    def empty(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Device memory, not initialised. Raises OutOfMemoryError."""
        ...

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor: ...

    def pinned(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Zeros in host memory that the device can read and write in place."""
        ...

    def upload(self, target: Tensor, source: Tensor) -> Fence:
        """Copy pinned host memory to device memory, in the stream's order; returns at once. Both contiguous,
        of one shape and dtype. `source` may be written again after the fence."""
        ...

    def copy_beside(self, copies: Sequence[tuple[Tensor, Tensor]]) -> Fence:
        """Start copies between device and pinned host memory, each a target and its source, contiguous, of
        one shape and dtype; from any thread. They have no order with the stream's work: what is read was
        written by work that has ended, and work on what is written starts behind the fence."""
        ...

    def shared(self, nbytes: int, *, ranks: int) -> Shared:
        """Memory that all `ranks` ranks of the group ask for, each on its device; not initialised."""
        ...

    def stage_link(self, nbytes: int, *, received: int) -> StageLink:
        """The link to the stages before and behind, which all ranks ask for. nbytes: of all that this rank
        sends in a step, or of all `received` transfers that it receives, whichever is more."""
        ...

    def register(self, address: int, nbytes: int) -> None:
        """Let the device read and write host memory of ours in place, as long as the process lives."""
        ...

    def capture(self, work: Callable[[], None]) -> Graph:
        """`work` as a graph; it runs once before, outside of it."""
        ...

    def mark(self) -> Fence:
        """The end of all that was started so far."""
        ...

    def free_bytes(self) -> int: ...

    def drain(self) -> bool:
        """Wait a few seconds for the end of all work; false where it failed or goes on. Raises nothing."""
        ...

    def trim(self) -> None:
        """Give memory that no tensor holds back to the driver."""
        ...
