"""A pool of pages, and one of recurrent states, as other engines may read them."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys

import numpy as np
from numpy.typing import NDArray

from firelane.contract import PageMemory
from firelane.kv.cache import KvCache
from firelane.kv.pool import STATES
from firelane.kv.transfer.page_copy import PageCopier
from firelane.kv.transfer.populate import populate

SEALS = 0x1 | 0x2 | 0x4 | 0x10
"""F_SEAL_SEAL, SHRINK, GROW and FUTURE_WRITE: who has the descriptor maps the file to read it."""
TAG_BYTES = 8


class ExportedMemory:
    """Pages of one size (a state is one, too), their checksums, and the file of their tags. tags_fd: -1 where
    the pages cannot be mapped. Owns that file alone."""

    def __init__(self, memory: PageMemory) -> None:
        self.memory = memory
        self.tags_fd = -1
        self._checksums: dict[int, tuple[int, int]] = {}

    def share_tags(self) -> memoryview | None:
        """The memory where tags have to lie from now on, if others can map it."""
        if self.memory.fd < 0 or sys.platform != "linux":
            return None
        self.tags_fd, tags = _mapped_tags(self.memory.num_pages)
        return tags

    def checksum(self, page: int, tag: int, content: NDArray[np.uint8], copier: PageCopier) -> int:
        """The checksum of the content that the page has under this tag: computed once."""
        known = self._checksums.get(page)
        if known is None or known[0] != tag:
            known = self._checksums[page] = tag, copier.checksum(content)
        return known[1]

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of pages and tags; none where they are private."""
        return (self.memory.fd, self.tags_fd) if self.tags_fd >= 0 else ()

    def close(self) -> None:
        """Idempotent."""
        if self.tags_fd >= 0:
            os.close(self.tags_fd)
            self.tags_fd = -1


class ExportedPool:
    """Pages and states, their names and tags. identity: of the model, as in wire.Ready. copier: of these
    pages and of those that come. states: None of a model without recurrent state. Made before anything
    happens to the pages."""

    def __init__(
        self,
        memory: PageMemory,
        names: KvCache,
        identity: str,
        copier: PageCopier | None = None,
        states: PageMemory | None = None,
    ) -> None:
        self.names, self.identity = names, identity
        self.copier = PageCopier() if copier is None else copier
        self.pages = ExportedMemory(memory)
        self.states = None if states is None else ExportedMemory(states)
        if (tags := self.pages.share_tags()) is not None:
            names.keep_tags_in(tags)
        if self.states is not None and (tags := self.states.share_tags()) is not None:
            names.keep_state_tags_in(tags)

    @property
    def memories(self) -> tuple[ExportedMemory, ...]:
        """The memory of pages, and that of states where there are some."""
        return (self.pages,) if self.states is None else (self.pages, self.states)

    def memory_of(self, group: int) -> ExportedMemory:
        """The memory of a cache group, or of STATES."""
        return self.states if group == STATES and self.states is not None else self.pages

    @property
    def layout_id(self) -> str:
        """Equal where all of it can be copied between two pools."""
        return "+".join(one.memory.layout_id for one in self.memories)

    @property
    def sizes(self) -> list[int]:
        """Bytes of a page, and of a state where there are some."""
        return [one.memory.page_bytes for one in self.memories]

    @property
    def counts(self) -> list[int]:
        """Number of pages, and of states where there are some."""
        return [one.memory.num_pages for one in self.memories]

    def populate(self) -> None:
        """Have shared memory there before it is needed; takes as long as zeroing it."""
        for one in self.memories:
            if one.fds and one.memory.pages is not None:
                populate(one.memory.pages, write=True)

    @property
    def lies_in_arrays(self) -> bool:
        """No page is copied on its way in or out."""
        return all(one.memory.pages is not None for one in self.memories)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of pages and tags, then those of states; none where any of them are private."""
        each = [one.fds for one in self.memories]
        return tuple(fd for fds in each for fd in fds) if all(each) else ()

    def close(self) -> None:
        """Idempotent."""
        for one in self.memories:
            one.close()


def _mapped_tags(num_pages: int) -> tuple[int, memoryview]:
    fd = os.memfd_create("firelane-kv-tags", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_pages * TAG_BYTES)
    tags = memoryview(mmap.mmap(fd, num_pages * TAG_BYTES)).cast("Q")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd, tags
