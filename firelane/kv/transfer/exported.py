"""A pool of pages as other engines may read it."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from typing import Protocol

from firelane.contract import PageMemory
from firelane.kv.transfer.page_copy import PageCopier, PlainCopier
from firelane.kv.transfer.populate import populate

SEALS = 0x1 | 0x2 | 0x4 | 0x10
"""F_SEAL_SEAL, SHRINK, GROW and FUTURE_WRITE: who has the descriptor maps the file to read it."""
TAG_BYTES = 8


class NamedPages(Protocol):
    """The owner of pages' names (KvCache)."""

    def locate(self, group: int, name: bytes) -> tuple[int, int]: ...
    def keep_tags_in(self, memory: memoryview) -> None: ...


class ExportedPool:
    """Pages, their names and tags. identity: of the model, as in wire.Ready. tags_fd: the file where tags
    lie, for pages that others can map; else -1. Made before anything happens to the pages; owns that file
    alone. copier: of these pages and of those that come."""

    def __init__(
        self, memory: PageMemory, names: NamedPages, identity: str, copier: PageCopier | None = None
    ) -> None:
        self.memory, self.names, self.identity = memory, names, identity
        self.copier = PlainCopier() if copier is None else copier
        self.tags_fd = -1
        self._checksums: dict[int, tuple[int, int]] = {}
        if memory.fd >= 0 and sys.platform == "linux":
            self.tags_fd, tags = _mapped_tags(memory.num_pages)
            names.keep_tags_in(tags)

    def checksum(self, page: int, tag: int) -> int:
        """Of the content that the page has under this tag: computed once."""
        known = self._checksums.get(page)
        if known is None or known[0] != tag:
            known = self._checksums[page] = tag, self.copier.checksum(self.memory.pages[page])
        return known[1]

    def populate(self) -> None:
        """Have the memory of shared pages there before they are needed; takes as long as zeroing it."""
        if self.fds:
            populate(self.memory.pages, write=True)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of pages and tags; none where they are private."""
        return (self.memory.fd, self.tags_fd) if self.tags_fd >= 0 else ()

    def close(self) -> None:
        """Idempotent."""
        if self.tags_fd >= 0:
            os.close(self.tags_fd)
            self.tags_fd = -1


def _mapped_tags(num_pages: int) -> tuple[int, memoryview]:
    fd = os.memfd_create("firelane-kv-tags", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_pages * TAG_BYTES)
    tags = memoryview(mmap.mmap(fd, num_pages * TAG_BYTES)).cast("Q")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd, tags
