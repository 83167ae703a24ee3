"""The end of a connection that copies pages to itself."""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.contract import PageMemory
from firelane.errors import PeerLostError
from firelane.kv.pool import STATES, WantedPage, WantedState
from firelane.kv.transfer.exported import ExportedPool
from firelane.kv.transfer.handshake import Side, join
from firelane.kv.transfer.messages import TAG_BYTES, Find, Found, Joined, PageLine
from firelane.kv.transfer.nixl import NixlAgent, NixlSession
from firelane.kv.transfer.nixl_copy import NixlCopy
from firelane.kv.transfer.outgoing import BATCH, most_staged
from firelane.kv.transfer.page_copy import Numbers, PageCopier, Sums
from firelane.kv.transfer.populate import populate
from firelane.kv.transfer.seam import Outcome, Settled

HANDSHAKE_S = 5.0
STATES_BATCH = 512
"""Names of one Find for a state."""
AHEAD = 2
"""Finds that are sent before the first of them is answered: the source looks while the reader copies."""
Tags = NDArray[np.uint64]
log = logging.getLogger(__name__)


class Pull(NamedTuple):
    ticket: int
    wanted: Sequence[WantedPage]
    mine: Sequence[int]
    deadline_s: float
    state: WantedState | None = None


class StreamedCopy:
    """From the connection itself. pages: here. streams: as in Find; batch: pages of one."""

    transport, streams, batch = "tcp", True, BATCH

    def __init__(self, line: PageLine, copier: PageCopier, pages: NDArray[np.uint8]) -> None:
        self._line, self._copier, self._pages = line, copier, pages

    def take(self, numbers: Numbers, places: Numbers, deadline_s: float) -> tuple[Sums, Tags]:
        """Copy these pages of the source to these places here; their checksums, and the tags that they had
        afterwards. Called once for the pages found of each Find. Raises as PageLine does."""
        del deadline_s  # the line's own
        sums, tags = (
            self._line.receive_pages(self._copier, self._pages, places),
            np.empty(len(numbers), "<u8"),
        )
        self._line.receive_into(tags.data.cast("B"))
        return sums, tags

    def hang_up(self) -> None:
        """From another thread: a copy that waits raises PeerLostError. The line hangs up by itself."""

    def close(self) -> None:
        pass


class StagedCopy:
    """From the connection into memory for some pages, and from there to their places."""

    transport, streams = "tcp", True

    def __init__(self, line: PageLine, copier: PageCopier, memory: PageMemory) -> None:
        """memory: of the pages here."""
        self.batch, self._memory = most_staged(memory), memory
        self._staging = memory.buffer(self.batch)
        self._streamed = StreamedCopy(line, copier, self._staging)

    def take(self, numbers: Numbers, places: Numbers, deadline_s: float) -> tuple[Sums, Tags]:
        count = len(numbers)
        if count > self.batch:
            raise PeerLostError("it sends more pages than there is room for")
        sums, tags = self._streamed.take(numbers, np.arange(count, dtype=np.int64), deadline_s)
        if not self._memory.write(places.tolist(), self._staging[:count]):
            raise PeerLostError("pages of this engine cannot be written to")
        return sums, tags

    def hang_up(self) -> None:
        self._streamed.hang_up()

    def close(self) -> None:
        self._streamed.close()


class MappedCopy:
    """From the source's memory, mapped here. pages: here."""

    transport, streams, batch = "shm", False, BATCH

    def __init__(
        self, fds: Sequence[int], num_pages: int, copier: PageCopier, pages: NDArray[np.uint8]
    ) -> None:
        """fds: of pages and tags. Raises OSError."""
        self._copier, self._pages = copier, pages
        page_bytes = pages.shape[1]
        self._theirs = _mapped(fds[0], num_pages * page_bytes).reshape(num_pages, page_bytes)
        populate(self._theirs, write=False)
        self._tags = _mapped(fds[1], num_pages * TAG_BYTES).view(np.uint64)

    def take(self, numbers: Numbers, places: Numbers, deadline_s: float) -> tuple[Sums, Tags]:
        sums = self._copier.copy(self._theirs, numbers, self._pages, places, deadline_s)
        return sums, self._tags[numbers]

    def hang_up(self) -> None:
        pass  # a copy ends by itself

    def close(self) -> None:
        """The mapping goes with the last reference."""
        del self._theirs, self._tags


Copy = StreamedCopy | StagedCopy | MappedCopy | NixlCopy
"""Copies of found pages, over one transport."""


class CopyPart(NamedTuple):
    """Pages or states of the source: how they are copied, how many there are, and the bytes of one."""

    copy: Copy
    num_pages: int
    page_bytes: int


class PageReader:
    """Pulls from one source, one after the other, in a thread of its own. Once one was lost or late, all are
    lost, and the thread ends when those are settled that came before on_end was called there, with the
    reason."""

    def __init__(
        self,
        line: PageLine,
        side: Side,
        settled: SimpleQueue[Settled],
        on_end: Callable[[PageReader, str], None],
        *,
        maps: bool = True,
    ) -> None:
        """Raises PeerLostError."""
        self._line, self._settled, self._on_end = line, settled, on_end
        maps = maps and side.pool.lies_in_arrays
        try:
            line.deadline_s = time.monotonic() + HANDSHAKE_S
            agent = None if maps and line.carries_descriptors else side.agent()
            joined, fds = join(line, side, maps=maps, nixl=agent is not None)
            self.peer = joined.engine_id
            self._parts = _parts(line, side.pool, joined, fds, agent)
        except (PeerLostError, OSError) as error:
            line.close()
            raise PeerLostError(f"no pages from this peer: {str(error) or 'it does not answer'}") from error
        self._pulls: SimpleQueue[Pull | None] = SimpleQueue()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="page-reader", daemon=True)
        self._thread.start()

    @property
    def transport(self) -> str:
        """The way of pages: shm, nixl or tcp."""
        return self._parts[0].copy.transport

    def pull(self, pull: Pull) -> None:
        self._pulls.put(pull)

    def close(self) -> None:
        """From another thread. What is not settled is lost."""
        self._is_closing = True
        self._line.hang_up()
        for part in self._parts:
            part.copy.hang_up()
        self._pulls.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_open = True
        while (pull := self._pulls.get()) is not None:
            if not is_open:
                self._settled.put(Settled(pull.ticket, "lost", [False] * len(pull.mine), 0, 0.0))
                continue
            settled, reason = self._serve(pull)
            if settled.outcome in ("lost", "late"):
                is_open = False
                self._line.close()
                if not self._is_closing:
                    self._on_end(self, reason)
                self._pulls.put(None)
            self._settled.put(settled)
        self._line.close()
        for part in self._parts:
            part.copy.close()

    def _serve(self, pull: Pull) -> tuple[Settled, str]:
        began_s, arrived, state = time.monotonic(), [False] * len(pull.mine), -1
        self._line.deadline_s = pull.deadline_s
        outcome: Outcome
        reason = ""
        try:
            state = self._fetch_state(pull)
            self._fetch(pull, arrived)
            outcome = "ok" if all(arrived) else "stale"
        except TimeoutError:
            outcome, reason = "late", "it was too slow"
        except PeerLostError as error:
            outcome, reason = "lost", str(error)
        nbytes = sum(arrived) * self._parts[0].page_bytes
        nbytes += self._parts[1].page_bytes if state >= 0 else 0
        return Settled(pull.ticket, outcome, arrived, nbytes, time.monotonic() - began_s, state), reason

    def _fetch_state(self, pull: Pull) -> int:
        """Place of the first name that is there, as long as it does not change, or -1."""
        if pull.state is None:
            return -1
        for start in range(0, len(pull.state.names), STATES_BATCH):
            names = pull.state.names[start : start + STATES_BATCH]
            wanted = [(STATES, name) for name in names]
            self._line.send(Find(wanted, only_first=True, streams=self._parts[1].copy.streams))
            found = self._line.receive(Found)
            arrived = self._take(found, self._parts[1], [pull.state.place] * len(names), pull.deadline_s)
            if max(found.pages) >= 0:
                return start + arrived.index(True) if any(arrived) else -1
        return -1

    def _fetch(self, pull: Pull, arrived: list[bool]) -> None:
        part = self._parts[0]
        batch = part.copy.batch
        starts = deque(range(0, len(pull.mine), batch))
        asked: deque[int] = deque()
        while starts or asked:
            while starts and len(asked) < AHEAD:
                start = starts.popleft()
                wanted = [(page.group, page.name) for page in pull.wanted[start : start + batch]]
                self._line.send(Find(wanted, streams=part.copy.streams))
                asked.append(start)
            start = asked.popleft()
            places = pull.mine[start : start + batch]
            came = self._take(self._line.receive(Found), part, places, pull.deadline_s)
            arrived[start : start + batch] = came

    def _take(self, found: Found, part: CopyPart, mine: Sequence[int], deadline_s: float) -> list[bool]:
        """Copy what was found to these places; for each, whether it is there now."""
        arrived = [False] * len(mine)
        if not len(found.pages) == len(found.tags) == len(found.checksums) == len(mine):
            raise PeerLostError("its answer is not to what was asked")
        if max(found.pages, default=-1) >= part.num_pages:
            raise PeerLostError(f"it has no page {max(found.pages)}")
        there = [index for index, page in enumerate(found.pages) if page >= 0]
        if not there:
            return arrived
        numbers, places = (np.array([of[index] for index in there], np.int64) for of in (found.pages, mine))
        sums, tags = part.copy.take(numbers, places, deadline_s)
        for index, total, tag in zip(there, sums.tolist(), tags.tolist(), strict=True):
            arrived[index] = tag == found.tags[index] and total == found.checksums[index]
        return arrived


def _parts(
    line: PageLine, pool: ExportedPool, joined: Joined, fds: list[int], agent: NixlAgent | None
) -> list[CopyPart]:
    """Takes over the descriptors. Raises OSError."""
    parts: list[CopyPart] = []
    sessions = _sessions(joined, agent, line.deadline_s or 0.0)
    try:
        for number, (own, count) in enumerate(zip(pool.memories, joined.counts, strict=True)):
            pages, their = own.memory.pages, fds[2 * number : 2 * number + 2]
            if pages is None:
                copy = StagedCopy(line, pool.copier, own.memory)
            elif joined.maps:
                copy = MappedCopy(their, count, pool.copier, pages)
            elif sessions:
                copy = NixlCopy(sessions, number, pool.copier, pages)
            else:
                copy = StreamedCopy(line, pool.copier, pages)
            parts.append(CopyPart(copy, count, own.memory.page_bytes))
    finally:
        for fd in fds:
            os.close(fd)
    return parts


def _sessions(joined: Joined, agent: NixlAgent | None, deadline_s: float) -> list[NixlSession]:
    """For reading from the source by NIXL; none: it travels over the connection."""
    if joined.nixl is None or agent is None:
        return []
    try:
        return agent.sessions(joined.nixl, deadline_s)
    except PeerLostError as error:
        log.warning(
            "nixl_refused engine_id=%s reason=%r: pages travel over TCP", joined.engine_id, str(error)
        )
        return []


def _mapped(fd: int, nbytes: int) -> NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ), np.uint8)
