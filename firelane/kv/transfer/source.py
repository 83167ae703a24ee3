"""The end of a connection that has the pages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from firelane.kv.transfer.exported import ExportedMemory
from firelane.kv.transfer.handshake import Side, welcome
from firelane.kv.transfer.messages import (
    ConnectionLostError,
    Find,
    Found,
    Line,
)
from firelane.kv.transfer.nixl import NixlAgent
from firelane.kv.transfer.page_copy import LateError

HANDSHAKE_S = 5.0
NOWHERE = (-1, 0)
SEND_S = 30.0
"""After which a reader that takes nothing is given up."""


class PageSource:
    """The thread that answers one reader, until that hangs up. on_end: called there, with the reason."""

    def __init__(self, line: Line, side: Side, on_end: Callable[[PageSource, str], None]) -> None:
        self._line, self._side, self._on_end = line, side, on_end
        self._agent: NixlAgent | None = None
        self._thread = threading.Thread(target=self._run, name="page-source", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._line.hang_up()
        self._thread.join()

    def _run(self) -> None:
        reason = ""
        try:
            self._line.deadline_s = time.monotonic() + HANDSHAKE_S
            self._agent = welcome(self._line, self._side)
            while True:
                self._line.deadline_s = None
                find: Find = self._line.receive(Find)
                self._line.deadline_s = time.monotonic() + SEND_S
                self._answer(find)
        except ConnectionLostError as error:
            reason = str(error)
        except LateError:
            reason = "it takes nothing"
        finally:
            self._line.close()
            self._on_end(self, reason)

    def _answer(self, find: Find) -> None:
        if self._agent is not None:
            self._agent.be_ready()
        exported, places = self._memory(find), self._places(find)
        pages = [page for page, _ in places]
        copier = self._side.pool.copier
        checksums = [exported.checksum(page, tag, copier) if page >= 0 else 0 for page, tag in places]
        self._line.send(Found(pages, [tag for _, tag in places], checksums))
        if find.streams:
            self._send_found(places, find)

    def _memory(self, find: Find) -> ExportedMemory:
        return self._side.pool.memory_of(find.wanted[0][0] if find.wanted else 0)

    def _places(self, find: Find) -> list[tuple[int, int]]:
        """The page and the tag of each that is wanted; NOWHERE for those that are not there."""
        pool, exported, places = self._side.pool, self._memory(find), list[tuple[int, int]]()
        for group, name in find.wanted:
            is_there = pool.memory_of(group) is exported
            places.append(pool.names.locate(group, name) if is_there else NOWHERE)
            if find.only_first and places[-1][0] >= 0:
                break
        return places + [NOWHERE] * (len(find.wanted) - len(places))

    def _send_found(self, places: list[tuple[int, int]], find: Find) -> None:
        pool, exported = self._side.pool, self._memory(find)
        found = [(page, wanted) for (page, _), wanted in zip(places, find.wanted, strict=True) if page >= 0]
        numbers = np.array([page for page, _ in found], np.int64)
        self._line.send_pages(pool.copier, exported.memory.pages, numbers)
        now = [(page, pool.names.locate(group, name)) for page, (group, name) in found]
        tags = [tag if place == page else 0 for page, (place, tag) in now]
        self._line.send_bytes(np.array(tags, "<u8").data.cast("B"))
