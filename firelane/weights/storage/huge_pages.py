"""HugePages: served weights move from small pages to huge ones."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from firelane.native.pages import HUGE_PAGE_BYTES, MappedFile

CHUNK_BYTES = 32 * HUGE_PAGE_BYTES
"""Bytes that move in one go: steps that read them wait for about a millisecond."""
ENOUGH = 0.95
log = logging.getLogger(__name__)


class HugePages:
    """The pages of a mapped file. In place where the kernel can do that: such pages are the page cache's, and
    replicas share them. Else by private copies, chunk by chunk, as long as `spare` says that what is left to
    copy may be taken from memory. Addresses and bytes stay the same.
    """

    def __init__(self, file: MappedFile, *, spare: Callable[[], int], asked: bool = False) -> None:
        """asked: the user wants them, and is told where they cannot be had."""
        self._file, self._spare, self._asked = file, spare, asked
        self._turn, self._is_let_go, self._is_moved = threading.Lock(), False, False

    def move(self, stopped: Callable[[], bool] = lambda: False) -> float:
        """Returns the share of huge pages in the end; `stopped` ends it early."""
        for step in (self._populate, self._collapse, self._copy):
            for start in range(0, self._file.nbytes, CHUNK_BYTES):
                if stopped() or not step(start):
                    break
            share = self._file.huge_share(0, self._file.nbytes)
            if share >= ENOUGH or stopped():
                break
        self._is_moved = not self._is_let_go
        log.debug("packed weights: %.0f%% in huge pages", 100 * share)
        if self._asked and share < ENOUGH and not stopped():
            log.warning(
                "weights_pages = huge: only %.0f%% of the weights lie in huge pages; free memory, or ask "
                "`firelane doctor` what this machine gives",
                100 * share,
            )
        return share

    def let_go(self) -> None:
        """Give the weights' pages back: nothing moves before `take_back`. Any thread may call this."""
        with self._turn:
            self._is_let_go = True
            if self._file.let_go():
                self._is_moved = False

    def take_back(self) -> bool:
        """Take back the pages that were let go; returns whether `move` has something to do again."""
        self._is_let_go = False
        return not self._is_moved

    def _populate(self, start: int) -> bool:
        return self._done(self._file.populate, start, self._size(start))

    def _collapse(self, start: int) -> bool:
        return self._done(self._file.collapse, start, self._size(start))

    def _copy(self, start: int) -> bool:
        """Memory without huge pages in it is not worth what the copies take: then the first is the last."""
        size = self._size(start)
        enough = self._file.nbytes - start <= self._spare()
        if not enough or not self._done(self._file.copy, start, size):
            return False
        return self._file.huge_share(start, size) >= ENOUGH

    def _size(self, start: int) -> int:
        return min(CHUNK_BYTES, self._file.nbytes - start)

    def _done(self, step: Callable[[int, int], None], start: int, nbytes: int) -> bool:
        with self._turn:
            if self._is_let_go:
                return False
            try:
                step(start, nbytes)
            except OSError as error:
                log.debug("packed weights: no huge pages by %s: %s", step.__name__, error.strerror)
                return False
        return True
