"""RankPeers: what the ranks of a model on several GPUs of one machine share.

Where every GPU can read the others' memory (NVLink, or PCIe between peers), rows lie in symmetric memory: a
barrier, then a kernel reads what it needs from all. Elsewhere NCCL gathers the rows first. Either way the
same kernel adds them, in the same order. PyTorch's process group, symmetric memory and NCCL do the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from firelane.backends.cuda.device.device import Shared, StageLink
from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.stage_links import MessageLink, SymmetricLink
from firelane.errors import MachineError
from firelane.parallel.ranks import RankLayout

MEET_S = 600.0
"""Until all ranks have come to where they meet while they load."""


class RankPeers:
    """A process's place among the ranks. The process group is made when it is first needed, for then all of
    them are there; close() ends it."""

    def __init__(
        self, rank: int, layout: RankLayout, meeting: Path, device: torch.device, *, gathers: bool = False
    ) -> None:
        """meeting: a file that is not there yet, the same for all ranks. gathers: rows are moved by the
        library, also where GPUs can read them."""
        self.rank, self.layout, self._meeting, self._device = rank, layout, meeting, device
        self._gathers = gathers
        self._stage: Any = None

    @property
    def are_readable(self) -> bool:
        """Whether every GPU can read the memory of every other one: the same answer on all ranks."""
        if self._gathers or self._device.type != "cuda":
            return False
        pairs = permutations(range(self.layout.ranks), 2)
        return all(torch.cuda.can_device_access_peer(*pair) for pair in pairs)

    def share(self, nbytes: int) -> Shared:
        """Memory of that size on every rank of this stage; all of them call this together. Raises
        MachineError where they do not find each other."""
        self._connect()
        return self._symmetric(nbytes) if self.are_readable else self._gathered(nbytes)

    def link_stages(self, nbytes: int, received: int) -> StageLink:
        """Link this stage with its neighbours, as Device.stage_link() does; all ranks of all stages call this
        together. Raises MachineError as share()."""
        self._connect()
        nbytes, lanes = self._most(nbytes), self.layout.lanes
        before, behind = self.rank - lanes, self.rank + lanes
        if not self.are_readable:
            outgoing, incoming = (self._empty(nbytes) for _ in range(2))
            return MessageLink(outgoing=outgoing, incoming=incoming, before=before, behind=behind)
        mine, handle = self._rendezvous(nbytes, dist.group.WORLD)
        theirs = handle.get_buffer(before, (nbytes,), torch.uint8) if before >= 0 else None
        link = SymmetricLink(handle=handle, mine=mine, theirs=theirs, before=before, behind=behind)
        link.open(received)
        return link

    def _most(self, nbytes: int) -> int:
        """The most that any rank asks for."""
        size = torch.tensor([nbytes], dtype=torch.int64, device=self._device)
        dist.all_reduce(size, op=dist.ReduceOp.MAX)
        return int(size.item())

    def _connect(self) -> None:
        """Once: all ranks find each other, and those of each stage are a group."""
        if dist.is_initialized():
            return
        is_gpu = self._device.type == "cuda"
        try:
            dist.init_process_group(
                "nccl" if is_gpu else "gloo",
                init_method=self._meeting.as_uri(),
                rank=self.rank,
                world_size=self.layout.ranks,
                timeout=timedelta(seconds=MEET_S),
            )
        except (RuntimeError, ValueError) as error:
            raise MachineError(f"rank {self.rank} of the model did not find the others: {error}") from error
        self._stage = self._stage_group()

    def _stage_group(self) -> Any:
        if self.layout.pp == 1:
            return dist.group.WORLD
        lanes = self.layout.lanes
        firsts = range(0, self.layout.ranks, lanes)
        groups = [dist.new_group(list(range(first, first + lanes))) for first in firsts]
        return groups[self.layout.stage_of(self.rank)]

    def _symmetric(self, nbytes: int) -> Shared:
        mine, handle = self._rendezvous(nbytes, self._stage)
        lanes = range(self.layout.lanes)
        memory = tuple(handle.get_buffer(lane, (nbytes,), torch.uint8) for lane in lanes)
        return SymmetricMemory(handle=handle, mine=mine, all=memory)

    def _rendezvous(self, nbytes: int, group: Any) -> tuple[Tensor, Any]:
        from torch.distributed import _symmetric_memory as symmetric

        mine = symmetric.empty(nbytes, dtype=torch.uint8, device=self._device)
        return mine, symmetric.rendezvous(mine, group)

    def _gathered(self, nbytes: int) -> Shared:
        lanes = self.layout.lanes
        mine, received = self._empty(nbytes), self._empty(nbytes * lanes)
        return GatheredMemory(mine=mine, received=received, ranks=lanes, group=self._stage)

    def _empty(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

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
    """Memory of this rank, and room for what a meeting brings of all in the library's group."""

    mine: Tensor
    received: Tensor
    ranks: int
    group: Any

    def meeting(self, first: int, nbytes: int) -> tuple[Work, tuple[Tensor, ...]]:
        received = self.received[: nbytes * self.ranks]
        gather = AllGather(self.mine[first : first + nbytes], received, self.group)
        return gather, received.split(nbytes)


@dataclass(frozen=True)
class AllGather:
    """Work that brings `mine` of all ranks of the library's group, one behind the other."""

    mine: Tensor
    received: Tensor
    group: Any
    name: str = "all_gather"

    def run(self) -> None:
        library: Any = dist
        gather = getattr(library, "all_gather_single", None) or library.all_gather_into_tensor
        gather(self.received, self.mine, group=self.group)

    def compile(self) -> None:
        """The library brings its kernels along."""
