"""The end of a connection that has the pages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from firelane.kv.transfer.handshake import Side, welcome
from firelane.kv.transfer.messages import (
    TAG_BYTES,
    ConnectionLostError,
    Find,
    Found,
    LateError,
    Line,
)

HANDSHAKE_S = 5.0
SEND_S = 30.0
"""After which a reader that takes nothing is given up."""


class PageSource:
    """The thread that answers one reader, until that hangs up. on_end: called there, with the reason."""

    def __init__(self, line: Line, side: Side, on_end: Callable[[PageSource, str], None]) -> None:
        self._line, self._side, self._on_end = line, side, on_end
        self._maps = False
        self._thread = threading.Thread(target=self._run, name="page-source", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._line.hang_up()
        self._thread.join()

    def _run(self) -> None:
        reason = ""
        try:
            self._line.deadline_s = time.monotonic() + HANDSHAKE_S
            join = welcome(self._line, self._side)
            self._maps = bool(join.maps and self._line.carries_descriptors and self._side.pool.fds)
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
        pool = self._side.pool
        places = [pool.names.locate(group, name) for group, name in find.wanted]
        pages = [page for page, _ in places]
        checksums = [pool.checksum(page, tag) if page >= 0 else 0 for page, tag in places]
        self._line.send(Found(pages, [tag for _, tag in places], checksums))
        if self._maps:
            return
        for page, (group, name) in zip(pages, find.wanted, strict=True):
            if page >= 0:
                self._line.send_bytes(pool.memory.pages[page].data)
                now, tag = pool.names.locate(group, name)
                self._line.send_bytes(memoryview((tag if now == page else 0).to_bytes(TAG_BYTES, "little")))
