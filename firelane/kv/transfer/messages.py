"""Messages between two engines, over a line with deadlines (firelane.link).

    greeting                     both prove that they have the key; facts are the reader's Join, and the
                                 source's Joined, with descriptors of its memory if they can travel
    reader -> source   Find      any number of times
    source -> reader   Found     the same number of times

Where the reader neither maps the source's memory nor reads it by NIXL, the pages follow their Found: the
bytes of all that were found, in order, then the tags (64 bits each) that they have once their bytes are on
the way. One Find asks for pages, or for states, which then are said to be pages, too. Of pages that are
copied on their way it asks for as many as there is room for at both ends (most_staged of outgoing.py): of
more, the rest is not found.

Under a cipher (cipher.py) all that follows the greeting travels in records.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from firelane.kv.transfer.page_copy import Numbers, PageCopier, Sums
from firelane.link.line import Line

PROTOCOL = 6
TAG_BYTES = 8


class NixlMemory(msgspec.Struct, frozen=True, array_like=True):
    """The part of an engine's NIXL agent that others see. metadata: as NIXL makes it. addresses: of pages,
    tags, and those of states, in the agent's process."""

    metadata: bytes
    addresses: list[int]


class Join(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The reader. identity: as in wire.Ready. sizes: as in ExportedPool. maps: it maps the source's memory,
    if it can. nixl: else it reads that by NIXL, if the source can. share: of the key for a cipher; b"": there
    is none."""

    engine_id: str
    identity: str
    layout_id: str
    sizes: list[int]
    maps: bool
    nixl: bool
    share: bytes = b""


class Joined(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The source. counts: as in ExportedPool. maps: descriptors of pages and of tags come along. nixl: of the
    memory that may be read so, where it is not mapped. share: as in Join, where that has one."""

    engine_id: str
    counts: list[int]
    maps: bool
    nixl: NixlMemory | None
    share: bytes = b""


class Find(msgspec.Struct, frozen=True, array_like=True, tag="find"):
    """Pages by cache group and name, or states. only_first: the first of these that is there, alone.
    streams: pages follow over this connection."""

    wanted: list[tuple[int, bytes]]
    only_first: bool = False
    streams: bool = True


class Found(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """For each page that was asked for: its number, or -1; its tag; the checksum of its content."""

    pages: list[int]
    tags: list[int]
    checksums: list[int]


class PageLine(Line):
    """A line on which pages travel, too, before its deadline."""

    def send_pages(self, copier: PageCopier, pages: NDArray[np.uint8], numbers: Numbers) -> None:
        """Send pages, as PageCopier.send() does."""
        if self.is_encrypted:
            for number in numbers:
                self.send_bytes(pages[number].data)
            return
        self.call(lambda sock: copier.send(sock, pages, numbers, self._ends_s))

    def receive_pages(self, copier: PageCopier, pages: NDArray[np.uint8], places: Numbers) -> Sums:
        """Receive pages, as PageCopier.receive() does."""
        if self.is_encrypted:
            sums = np.zeros(len(places), np.uint64)
            for index, place in enumerate(places):
                self.receive_into(pages[place].data)
                sums[index] = copier.checksum(pages[place])  # while it lies in the processor's cache
            return sums
        return self.call(lambda sock: copier.receive(sock, pages, places, self._ends_s))

    @property
    def _ends_s(self) -> float:
        assert self.deadline_s is not None
        return self.deadline_s
