"""The memory that the ranks of one machine share: headers (csrc/ranks/link.h), the inputs of the steps that
all of them run, the rows that they exchange, and pages that the engine's process is to reach."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.memory import HUGE_PAGE_BYTES
from firelane.backends.cpu.native import (
    LINK_BYTES,
    LINK_COUNTS_AT,
    LINK_ENDED_AT,
    LINK_STAGES_AT,
    MOST_IN_FLIGHT,
    MOST_LANES,
    STAGE_BUSY_AT,
    STAGE_BYTES,
    PeerStruct,
)
from firelane.backends.cpu.page_pool import pages_bytes, states_bytes
from firelane.backends.ranks.step_ring import StepRing, step_bytes
from firelane.errors import MachineError
from firelane.native.pages import give_back
from firelane.parallel.hosts import HostLayout
from firelane.program.ops import AllReduce, AwaitCache, Gather, GatherColumns, GatherRows
from firelane.program.values import Value

PAGE = mmap.PAGESIZE


@dataclass(frozen=True, kw_only=True)
class LinkSizes:
    """Bytes, alike for all ranks: of a rank's part of a sum, or of rows, of what is gathered of columns, of
    the rows of a step that a rank hands on to the next stage, and of the KV cache that the ranks of a stage
    have together, if they do. own_pages, own_states: of the KV cache and of the recurrent states that each
    rank has, where the engine's process is to reach them; else 0."""

    sum: int
    gathered: int
    mail: int
    pages: int
    own_pages: int = 0
    own_states: int = 0

    @classmethod
    def of(cls, layouts: Iterable[Layout], *, reaches: bool = False) -> LinkSizes:
        """Layouts: of all ranks. reaches: the engine's process is to reach the pages of all."""
        layouts = list(layouts)
        found = [_exchanged(layout) for layout in layouts]
        own = [layout for layout in layouts if reaches and not layout.shares_cache]
        states = [states_bytes(layout) for layout in layouts if reaches and layout.limits.state_bytes]
        return cls(
            own_pages=_in_pages(max(map(pages_bytes, own), default=0), HUGE_PAGE_BYTES),
            own_states=_in_pages(max(states, default=0), HUGE_PAGE_BYTES),
            sum=_in_pages(max(sizes.sum for sizes in found)),
            gathered=_in_pages(max(sizes.gathered for sizes in found)),
            mail=_in_pages(max(sizes.mail for sizes in found)),
            pages=_in_pages(max(sizes.pages for sizes in found), HUGE_PAGE_BYTES),
        )


def _exchanged(layout: Layout) -> LinkSizes:
    """Figures of one rank."""
    rows = layout.max_rows
    ops = [op for op in layout.meetings if not isinstance(op, AwaitCache)]
    sizes = {op: layout.row_bytes(op.sent) * rows[op.sent.rows] for op in ops}
    return LinkSizes(
        sum=max((n for op, n in sizes.items() if not isinstance(op, Gather)), default=0),
        gathered=max((n for op, n in sizes.items() if isinstance(op, Gather)), default=0),
        mail=sum(layout.row_bytes(value) * rows[value.rows] for value in layout.sent),
        pages=pages_bytes(layout) if layout.shares_cache else 0,
    )


@dataclass(frozen=True, kw_only=True)
class RankWires:
    """Descriptors of a rank's connections to ranks of other hosts: those that it adds up with, by their
    numbers, and those of the stages before and after; -1 where there is none."""

    peers: Mapping[int, int] = field(default_factory=dict[int, int])
    mail_in: int = -1
    mail_out: int = -1

    @property
    def fds(self) -> list[int]:
        return [fd for fd in (*self.peers.values(), self.mail_in, self.mail_out) if fd >= 0]


NO_WIRES = RankWires()


class RankLink:
    """The shared memory of the ranks of one host, as rank `rank` sees it, and its connections to others.
    Whoever made it hands `fd` to the others and closes it; the mapping lives as long as this object.

    Behind the headers lie the inputs of `depth` steps in turns, one more than are in flight; then for each
    stage two places, in turns, of its ranks' parts of sums; what is gathered; for each rank the rows of
    `depth` steps for the next stage; for each stage the KV cache of its ranks, if they have one together; and
    for each rank its own, and its states, if the engine's process is to reach them."""

    def __init__(
        self,
        layout: Layout,
        hosts: HostLayout,
        rank: int,
        sizes: LinkSizes,
        *,
        cores: int,
        fd: int = -1,
        wires: RankWires = NO_WIRES,
    ) -> None:
        """fd: of the memory that another process has made with the same sizes; -1 makes one. cores: that the
        ranks of this host have together; with fewer than ranks nobody waits busily. Raises MachineError where
        the sizes differ."""
        self.layout, self.hosts, self.rank, self.sizes, self.wires = layout, hosts, rank, sizes, wires
        ranks = self.ranks = hosts.ranks
        self.stage, self.lane, self.depth = ranks.stage_of(rank), ranks.lane_of(rank), ranks.pp + 1
        self.spins = 20000 if cores >= hosts.each else 0
        assert self.depth <= MOST_IN_FLIGHT, f"{ranks.pp} stages"
        assert ranks.lanes <= MOST_LANES, f"{ranks.lanes} ranks of a stage"
        inputs_bytes = _in_pages(step_bytes(layout.limits))
        inputs_at = _in_pages(LINK_BYTES + ranks.pp * STAGE_BYTES)
        self._sums_at = inputs_at + self.depth * inputs_bytes
        self._gathered_at = self._sums_at + ranks.pp * 2 * ranks.lanes * sizes.sum
        self._mail_at = self._gathered_at + sizes.gathered
        behind = self._mail_at + (ranks.pp - 1) * ranks.lanes * self.depth * sizes.mail
        self._pages_at = _in_pages(behind, HUGE_PAGE_BYTES)
        self._own_at = self._pages_at + ranks.pp * sizes.pages
        size = self._own_at + hosts.each * (sizes.own_pages + sizes.own_states)
        self.fd = fd if fd >= 0 else os.memfd_create("firelane-ranks", os.MFD_CLOEXEC)
        if fd < 0:
            os.ftruncate(self.fd, size)
        elif os.fstat(fd).st_size != size:
            raise MachineError(
                f"rank {rank}: memory of {os.fstat(fd).st_size} bytes is shared, {size} are needed"
            )
        self._memory = mmap.mmap(self.fd, size)
        self._advise()
        self._bytes = np.frombuffer(self._memory, np.uint8)
        counts = np.ndarray((self.depth, 4), np.int32, self._memory, LINK_COUNTS_AT)
        self._bytes[LINK_STAGES_AT] = ranks.pp
        self.ring = StepRing(layout.limits, self._memory, counts, at=inputs_at, apart=inputs_bytes)

    def _advise(self) -> None:
        """Huge pages for KV caches and states, where the system has such for files in memory."""
        if len(self._memory) > self._pages_at:
            with suppress(OSError):
                self._memory.madvise(mmap.MADV_HUGEPAGE, self._pages_at, len(self._memory) - self._pages_at)

    @property
    def pages(self) -> NDArray[np.uint8] | None:
        """The KV cache of this rank, zeroed at first; None where it lies in memory of its own."""
        return self.pages_of(self.rank)

    @property
    def states(self) -> NDArray[np.uint8] | None:
        """The recurrent states of this rank; as `pages`."""
        return self.states_of(self.rank)

    def pages_of(self, rank: int) -> NDArray[np.uint8] | None:
        """Pages of a rank of this host."""
        if self.sizes.pages:
            return self._part(self._pages_at + self.ranks.stage_of(rank) * self.sizes.pages, self.sizes.pages)
        return self._part(self._own(rank), self.sizes.own_pages)

    def states_of(self, rank: int) -> NDArray[np.uint8] | None:
        """States of a rank of this host."""
        return self._part(self._own(rank) + self.sizes.own_pages, self.sizes.own_states)

    def _own(self, rank: int) -> int:
        return self._own_at + rank % self.hosts.each * (self.sizes.own_pages + self.sizes.own_states)

    def _part(self, start: int, size: int) -> NDArray[np.uint8] | None:
        return self._bytes[start : start + size] if size else None

    @property
    def header(self) -> int:
        """Its address."""
        return self._bytes.ctypes.data

    @property
    def sums(self) -> int:
        """Address of the parts of this stage's sums."""
        return self.header + self._sums_at + self.stage * 2 * self.ranks.lanes * self.sizes.sum

    @property
    def mail_out(self) -> int:
        """Address of this rank's rows for the next stage; of the last stage, of nothing."""
        return self._mail(self.rank)

    @property
    def mail_in(self) -> int:
        """The address of rows that the stage before sends to this rank; the first stage reads none."""
        return self._mail(max(0, self.rank - self.ranks.lanes))

    def _mail(self, sender: int) -> int:
        return self.header + self._mail_at + sender * self.depth * self.sizes.mail

    @property
    def has_ended(self) -> bool:
        """Whether some rank is gone: what the others compute since is nothing."""
        return bool(self._bytes[LINK_ENDED_AT])

    def busy_seconds(self) -> list[float]:
        """Seconds that each rank spent in its steps, waits for other stages not counted."""
        shape, strides = (self.ranks.pp, self.ranks.lanes), (STAGE_BYTES, 8)
        at = LINK_BYTES + STAGE_BUSY_AT
        return np.ndarray(shape, np.float64, self._memory, at, strides).ravel().tolist()

    def places(self) -> dict[Value, int]:
        """Addresses of the values that lie here."""
        found: dict[Value, int] = {}
        for op, number in self.layout.meetings.items():
            if isinstance(op, AllReduce | GatherColumns | GatherRows):
                part = number % 2 * self.ranks.lanes + self.lane
                found[op.x] = self.sums + part * self.sizes.sum
            elif isinstance(op, Gather):
                start = self.header + self._gathered_at
                found[op.x] = start + op.columns.start * self.layout.element_bytes(op.x.dtype)
                if op.out is not None:
                    found[op.out] = start
        return found

    def peers(self) -> list[PeerStruct]:
        """This rank, then those of other hosts that it exchanges rows with."""
        fds = {self.rank: -1, **self.wires.peers}
        gathered = [op for op in self.layout.meetings if isinstance(op, Gather)]
        assert len(gathered) <= 1, "a peer has its columns in one place"
        return [self._peer(rank, fd, gathered) for rank, fd in fds.items()]

    def _peer(self, rank: int, fd: int, gathered: list[Gather]) -> PeerStruct:
        lane = self.ranks.lane_of(rank)
        made = PeerStruct(fd=fd, lane=lane)
        for op in gathered:
            size = self.layout.element_bytes(op.x.dtype)
            made.column, made.width = sum(op.widths[:lane]) * size, op.widths[lane] * size
        return made

    def give_back(self) -> None:
        """Memory of what the ranks exchange, while no step is in flight."""
        give_back(self._bytes[self._sums_at :])

    def close_fd(self) -> None:
        """Idempotent; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _in_pages(nbytes: int, page: int = PAGE) -> int:
    return -(-nbytes // page) * page
