"""Links between the stages of a pipeline on several GPUs: rows that the next stage reads in symmetric memory,
or that NCCL brings.

In symmetric memory two signals of PyTorch's guard a transfer, both part of the step's graph: the sender says
that rows are there, the receiver that they have been read, so that the next step's may take their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor

from firelane.backends.cuda.device.device import Transfer
from firelane.backends.cuda.device.launch import NOTHING


def sent_channel(number: int) -> int:
    """The channel of the signal that the rows of a transfer are there."""
    return 2 * number


def read_channel(number: int) -> int:
    """The channel of the signal that the rows of a transfer have been read."""
    return 2 * number + 1


@dataclass(frozen=True, kw_only=True)
class SymmetricLink:
    """A link whose receiver reads the sender's memory. handle: PyTorch's, of all ranks. mine: what this rank
    sends; theirs: of the stage before, None of the first. before, behind: ranks of those stages."""

    handle: Any
    mine: Tensor
    theirs: Tensor | None
    before: int
    behind: int

    def send(self, number: int, first: int, nbytes: int) -> Transfer:
        return Transfer(
            before=Signal(self.handle, self.behind, read_channel(number), "wait_signal"),
            memory=self.mine[first : first + nbytes],
            after=Signal(self.handle, self.behind, sent_channel(number), "put_signal"),
        )

    def receive(self, number: int, first: int, nbytes: int) -> Transfer:
        assert self.theirs is not None, "the first stage receives nothing"
        return Transfer(
            before=Signal(self.handle, self.before, sent_channel(number), "wait_signal"),
            memory=self.theirs[first : first + nbytes],
            after=Signal(self.handle, self.before, read_channel(number), "put_signal"),
        )

    def open(self, received: int) -> None:
        """Let the stage before send for the first time."""
        for number in range(received):
            Signal(self.handle, self.before, read_channel(number), "put_signal").run()


@dataclass(frozen=True)
class Signal:
    """Work that puts a signal to a peer, or waits for one of it, in the stream of the device."""

    handle: Any
    peer: int
    channel: int
    name: Literal["put_signal", "wait_signal"]

    def run(self) -> None:
        getattr(self.handle, self.name)(self.peer, channel=self.channel)

    def compile(self) -> None:
        """PyTorch brings its kernel along."""


@dataclass(frozen=True, kw_only=True)
class MessageLink:
    """A link over which the library of the process group sends rows. outgoing, incoming: uint8, of one size.
    before, behind: as of SymmetricLink."""

    outgoing: Tensor
    incoming: Tensor
    before: int
    behind: int

    def send(self, number: int, first: int, nbytes: int) -> Transfer:
        del number  # messages come in order
        memory = self.outgoing[first : first + nbytes]
        return Transfer(before=NOTHING, memory=memory, after=StageMessage("send", memory, self.behind))

    def receive(self, number: int, first: int, nbytes: int) -> Transfer:
        del number
        memory = self.incoming[first : first + nbytes]
        return Transfer(before=StageMessage("recv", memory, self.before), memory=memory, after=NOTHING)


@dataclass(frozen=True)
class StageMessage:
    """Work that sends `memory` to a peer, or fills it with what the peer sends."""

    name: Literal["send", "recv"]
    memory: Tensor
    peer: int

    def run(self) -> None:
        library: Any = dist
        getattr(library, self.name)(self.memory, self.peer)

    def compile(self) -> None:
        """The library brings its kernels along."""
