"""HostDevice: a Device on CPU tensors, for launches that the interpreter runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import WAIT_LIMIT_S, Shared, StageLink

_GARBAGE = {1: 0x7F, 2: 0x7F7F, 4: 0x7F7F7F7F, 8: 0x7F7F7F7F7F7F7F7F}


def poison(tensor: Tensor) -> Tensor:
    """Fill it, in place, with what no result may contain: NaN, or 0x7f7f… for integers. Returns it."""
    if tensor.is_floating_point():
        return tensor.fill_(torch.nan)
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    return tensor.fill_(_GARBAGE[tensor.element_size()])


def copy_each(copies: Sequence[tuple[Tensor, Tensor]]) -> None:
    for target, source in copies:
        assert target.is_contiguous()
        assert source.is_contiguous()
        target.copy_(source)


@dataclass(frozen=True)
class HostGraph:
    """Runs the captured work again for each replay."""

    work: Callable[[], None]

    def replay(self) -> None:
        self.work()


class HostFence:
    """Waits for nothing: the work before it is done already."""

    def wait(self, limit_s: float = WAIT_LIMIT_S, given_up: Callable[[], str] = lambda: "") -> None:
        pass


class HostDevice:
    """All work is done when it is started. Memory is poisoned where it is not said to be zero."""

    def __init__(self, *, num_sms: int = 4, memory_bytes: int = 1 << 30, warm: bool = True) -> None:
        """warm: capture() runs the work first, as the contract says."""
        self._num_sms = num_sms
        self._free_bytes = memory_bytes
        self._warm = warm

    @property
    def name(self) -> str:
        return "Triton's interpreter"

    @property
    def arithmetic(self) -> str:
        return ""

    @property
    def num_sms(self) -> int:
        return self._num_sms

    def on_stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def empty(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return poison(self._take(torch.empty(shape, dtype=dtype)))

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return self._take(torch.zeros(shape, dtype=dtype))

    def pinned(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def register(self, address: int, nbytes: int) -> None:
        pass

    def shared(self, nbytes: int, *, ranks: int) -> Shared:
        raise NotImplementedError

    def stage_link(self, nbytes: int, *, received: int) -> StageLink:
        raise NotImplementedError

    def capture(self, work: Callable[[], None]) -> HostGraph:
        if self._warm:
            work()
        return HostGraph(work)

    def upload(self, target: Tensor, source: Tensor) -> HostFence:
        target.copy_(source)
        return HostFence()

    def copy_beside(self, copies: Sequence[tuple[Tensor, Tensor]]) -> HostFence:
        copy_each(copies)
        return HostFence()

    def mark(self) -> HostFence:
        return HostFence()

    def free_bytes(self) -> int:
        return self._free_bytes

    def drain(self) -> bool:
        return True

    def trim(self) -> None:
        pass

    def _take(self, tensor: Tensor) -> Tensor:
        self._free_bytes -= tensor.nbytes
        return tensor
