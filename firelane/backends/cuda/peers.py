"""Peers: what the ranks of a model on several GPUs of one machine share.

Where every GPU can read the others' memory (NVLink, or PCIe between peers), rows lie in symmetric memory: a
barrier, then a kernel reads what it needs from all. Elsewhere NCCL gathers the rows first. Either way the
same kernel adds them, in the same order. PyTorch's process group, symmetric memory and NCCL do the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from firelane.backends.cuda.device import Shared
from firelane.backends.cuda.launch import Work
from firelane.errors import MachineError

MEET_S = 600.0
"""Until all ranks have come to where they meet while they load."""


class Peers:
    """A process's place among the ranks. The process group is made when it is first needed, for then all of
    them are there; close() ends it."""

    def __init__(
        self, rank: int, ranks: int, meeting: Path, device: torch.device, *, gathers: bool = False
    ) -> None:
        """meeting: a file that is not there yet, the same for all ranks. gathers: rows, also where GPUs can
        read them."""
        self.rank, self.ranks, self._meeting, self._device = rank, ranks, meeting, device
        self._gathers = gathers

    @property
    def are_readable(self) -> bool:
        """Whether every GPU can read the memory of every other one: the same answer on all ranks."""
        if self._gathers or self._device.type != "cuda":
            return False
        pairs = [(a, b) for a in range(self.ranks) for b in range(self.ranks) if a != b]
        return all(torch.cuda.can_device_access_peer(*pair) for pair in pairs)

    def share(self, nbytes: int) -> Shared:
        """Memory of that size on every rank; all of them call this together. Raises MachineError where they
        do not find each other."""
        if not dist.is_initialized():
            self._connect()
        return self._symmetric(nbytes) if self.are_readable else self._gathered(nbytes)

    def _connect(self) -> None:
        is_gpu = self._device.type == "cuda"
        try:
            dist.init_process_group(
                "nccl" if is_gpu else "gloo",
                init_method=self._meeting.as_uri(),
                rank=self.rank,
                world_size=self.ranks,
                timeout=timedelta(seconds=MEET_S),
            )
        except (RuntimeError, ValueError) as error:
            raise MachineError(f"rank {self.rank} of the model did not find the others: {error}") from error

    def _symmetric(self, nbytes: int) -> Shared:
        from torch.distributed import _symmetric_memory as symmetric

        mine = symmetric.empty(nbytes, dtype=torch.uint8, device=self._device)
        world: Any = dist.group.WORLD
        handle: Any = symmetric.rendezvous(mine, world)
        memory = tuple(handle.get_buffer(rank, (nbytes,), torch.uint8) for rank in range(self.ranks))
        return SymmetricMemory(handle=handle, mine=mine, all=memory)

    def _gathered(self, nbytes: int) -> Shared:
        mine, received = (
            torch.empty(n, dtype=torch.uint8, device=self._device) for n in (nbytes, nbytes * self.ranks)
        )
        return GatheredMemory(mine=mine, received=received, ranks=self.ranks)

    def close(self) -> None:
        """Idempotent."""
        if dist.is_initialized():
            dist.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class SymmetricMemory:
    """Memory of all ranks, mapped into this process. handle: PyTorch's."""

    handle: Any
    mine: Tensor
    all: tuple[Tensor, ...]

    def meeting(self, first: int, nbytes: int) -> tuple[Work, tuple[Tensor, ...]]:
        return Barrier(self.handle), tuple(memory[first : first + nbytes] for memory in self.all)


@dataclass(frozen=True)
class Barrier:
    """Work that waits until all ranks have come to it, in the streams of their devices."""

    handle: Any
    name: str = "barrier"

    def run(self) -> None:
        self.handle.barrier(channel=0)

    def compile(self) -> None:
        """PyTorch brings its kernel along."""


@dataclass(frozen=True, kw_only=True)
class GatheredMemory:
    """Memory of this rank, and room for what a meeting brings of all."""

    mine: Tensor
    received: Tensor
    ranks: int

    def meeting(self, first: int, nbytes: int) -> tuple[Work, tuple[Tensor, ...]]:
        received = self.received[: nbytes * self.ranks]
        return AllGather(self.mine[first : first + nbytes], received), received.split(nbytes)


@dataclass(frozen=True)
class AllGather:
    """Work that brings `mine` of all ranks, one behind the other."""

    mine: Tensor
    received: Tensor
    name: str = "all_gather"

    def run(self) -> None:
        library: Any = dist
        gather = getattr(library, "all_gather_single", None) or library.all_gather_into_tensor
        gather(self.received, self.mine)

    def compile(self) -> None:
        """The library brings its kernels along."""
