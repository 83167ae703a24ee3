"""LateDevice: a HostDevice that runs what was started as late as a device may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from firelane.backends.cuda.device.device import WAIT_LIMIT_S
from firelane.errors import MachineError
from tests.backends.cuda.host_device import HostDevice, copy_each


@dataclass
class Stream:
    """Holds the work that was started and has not run. started: counts all that ever was."""

    works: list[Callable[[], None]] = field(default_factory=list)
    started: int = 0
    hangs: bool = False

    def start(self, work: Callable[[], None]) -> None:
        self.works.append(work)
        self.started += 1

    def run_until(self, count: int) -> None:
        """In order, up to the first `count` of all."""
        while self.works and self.started - len(self.works) < count:
            self.works.pop(0)()


@dataclass(frozen=True)
class LateGraph:
    work: Callable[[], None]
    stream: Stream

    def replay(self) -> None:
        self.stream.start(self.work)


@dataclass(frozen=True)
class LateFence:
    stream: Stream
    count: int

    def wait(self, limit_s: float = WAIT_LIMIT_S, given_up: Callable[[], str] = lambda: "") -> None:
        if why := given_up():
            raise MachineError(why)
        if self.stream.hangs:
            raise MachineError(f"the GPU has not ended its work within {limit_s:g} s")
        self.stream.run_until(self.count)


class LateDevice(HostDevice):
    """Graphs run when a fence behind them is waited for, and so do copies beside them; with `stream.hangs`
    they never end."""

    def __init__(self) -> None:
        super().__init__(warm=False)
        self.stream, self.copies = Stream(), Stream()

    def capture(self, work: Callable[[], None]) -> LateGraph:  # type: ignore[override]
        return LateGraph(work, self.stream)

    def mark(self) -> LateFence:  # type: ignore[override]
        return LateFence(self.stream, self.stream.started)

    def copy_beside(self, copies: Sequence[tuple[Tensor, Tensor]]) -> LateFence:  # type: ignore[override]
        self.copies.start(lambda: copy_each(copies))
        return LateFence(self.copies, self.copies.started)

    def drain(self) -> bool:
        self.stream.works.clear()
        return not self.stream.hangs
