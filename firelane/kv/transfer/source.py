"""The end of a connection that has the pages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from firelane.errors import PeerLostError
from firelane.kv.transfer.exported import ExportedMemory
from firelane.kv.transfer.handshake import Side, welcome
from firelane.kv.transfer.messages import Find, Found, PageLine
from firelane.kv.transfer.nixl import NixlAgent
from firelane.kv.transfer.outgoing import Outgoing, Place, outgoing

HANDSHAKE_S = 5.0
NOWHERE: Place = (-1, 0)
SEND_S = 30.0
"""After which a reader that takes nothing is given up."""


class PageServer:
    """The thread that answers one reader, until that hangs up. on_end: called there, with the reason.
    is_proven: the reader has proven that it has the key."""

    def __init__(self, line: PageLine, side: Side, on_end: Callable[[PageServer, str], None]) -> None:
        self._line, self._side, self._on_end = line, side, on_end
        self._agent: NixlAgent | None = None
        self._on_their_way: dict[ExportedMemory, Outgoing] = {}
        self.is_proven = False
        self._thread = threading.Thread(target=self._run, name="page-source", daemon=True)
        self._thread.start()

    def hang_up(self) -> None:
        """From any thread: this one ends soon."""
        self._line.hang_up()

    def close(self) -> None:
        self.hang_up()
        self._thread.join()

    def _run(self) -> None:
        reason = ""
        try:
            self._line.deadline_s = time.monotonic() + HANDSHAKE_S
            self._agent = welcome(self._line, self._side)
            self.is_proven = True
            while True:
                self._line.deadline_s = None
                find = self._line.receive(Find)
                self._line.deadline_s = time.monotonic() + SEND_S
                self._answer(find)
        except PeerLostError as error:
            reason = str(error)
        except TimeoutError:
            reason = "it takes nothing"
        finally:
            self._line.close()
            self._on_end(self, reason)

    def _answer(self, find: Find) -> None:
        if self._agent is not None:
            self._agent.be_ready()
        sent, copier = self._outgoing(find), self._side.pool.copier
        places = self._places(find, sent.most)
        checksums = sent.prepare(places, copier)
        if checksums is None:
            places, checksums = [NOWHERE] * len(places), [0] * len(places)
        self._line.send(Found([page for page, _ in places], [tag for _, tag in places], checksums))
        if find.streams:
            sent.send(self._line, copier)
            self._send_tags(places, find)

    def _outgoing(self, find: Find) -> Outgoing:
        exported = self._memory(find)
        if exported not in self._on_their_way:
            self._on_their_way[exported] = outgoing(exported)
        return self._on_their_way[exported]

    def _memory(self, find: Find) -> ExportedMemory:
        return self._side.pool.memory_of(find.wanted[0][0] if find.wanted else 0)

    def _places(self, find: Find, most: int) -> list[Place]:
        """The page and the tag of each that is wanted; NOWHERE for those that are not there, and of more than
        `most`."""
        pool, exported, places = self._side.pool, self._memory(find), list[Place]()
        left = 1 if find.only_first else most
        for group, name in find.wanted:
            is_there = left > 0 and pool.memory_of(group) is exported
            places.append(pool.names.locate(group, name) if is_there else NOWHERE)
            left -= places[-1][0] >= 0
        return places

    def _send_tags(self, places: list[Place], find: Find) -> None:
        """Send the tags that pages have once their bytes are on the way."""
        locate = self._side.pool.names.locate
        found = [(page, wanted) for (page, _), wanted in zip(places, find.wanted, strict=True) if page >= 0]
        now = [(page, locate(group, name)) for page, (group, name) in found]
        tags = [tag if place == page else 0 for page, (place, tag) in now]
        self._line.send_bytes(np.array(tags, "<u8").data.cast("B"))
