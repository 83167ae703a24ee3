"""All connections of one engine to others."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from firelane.kv.incoming import WantedPage
from firelane.kv.transfer.exported import ExportedPool
from firelane.kv.transfer.handshake import Side
from firelane.kv.transfer.messages import Line
from firelane.kv.transfer.reader import PageReader, Pull
from firelane.kv.transfer.seam import Settled
from firelane.kv.transfer.source import PageSource


class PeerTransfer:
    """See KVTransfer. Pages come by shared memory where the connection is a Unix socket and the source's
    pages can be mapped, else over the connection itself. on_lost: called by a thread with the engine_id of a
    peer that is gone or too slow, and the reason. Owns its threads, connections and `pool`."""

    def __init__(
        self,
        pool: ExportedPool,
        *,
        key: bytes = b"",
        maps: bool = True,
        on_lost: Callable[[str, str], None] | None = None,
    ) -> None:
        """key: of the cluster; none is needed between engines that one parent has connected. maps: False =
        pages always travel over the connection."""
        self._side = Side(secrets.token_hex(16), pool, key)
        self._maps, self._on_lost = maps, on_lost
        self._readers: dict[str, PageReader] = {}
        self._sources: set[PageSource] = set()
        self._guard = threading.Lock()
        """Of _readers and _sources."""
        self._settled: SimpleQueue[Settled] = SimpleQueue()
        self._tickets = 0

    @property
    def engine_id(self) -> str:
        return self._side.engine_id

    @property
    def page_bytes(self) -> int:
        return self._side.pool.memory.page_bytes

    @property
    def peers(self) -> list[str]:
        """The peers that pages can be pulled from."""
        return list(self._readers)

    def export(self, sock: socket.socket) -> None:
        with self._guard:
            self._sources.add(PageSource(Line(sock), self._side, self._source_ended))

    def attach(self, sock: socket.socket) -> str:
        reader = PageReader(Line(sock), self._side, self._settled, self._reader_ended, maps=self._maps)
        with self._guard:
            before = self._readers.get(reader.peer)
            self._readers[reader.peer] = reader
        if before is not None:
            before.close()
        return reader.peer

    def pull(self, peer: str, wanted: Sequence[WantedPage], mine: Sequence[int], deadline_s: float) -> int:
        self._tickets += 1
        with self._guard:
            reader = self._readers.get(peer)
            if reader is not None:
                reader.pull(Pull(self._tickets, wanted, mine, deadline_s))
        if reader is None:
            self._settled.put(Settled(self._tickets, "lost", [False] * len(mine), 0, 0.0))
        return self._tickets

    def poll(self) -> list[Settled]:
        found: list[Settled] = []
        while not self._settled.empty():
            try:
                found.append(self._settled.get_nowait())
            except Empty:
                break
        return found

    def detach(self, peer: str) -> None:
        with self._guard:
            reader = self._readers.pop(peer, None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Hang up on all; idempotent."""
        for peer in self.peers:
            self.detach(peer)
        with self._guard:
            sources = list(self._sources)
        for source in sources:
            source.close()
        self._side.pool.close()

    def _source_ended(self, source: PageSource, reason: str) -> None:
        del reason
        with self._guard:
            self._sources.discard(source)

    def _reader_ended(self, reader: PageReader, reason: str) -> None:
        with self._guard:
            if self._readers.get(reader.peer) is reader:
                del self._readers[reader.peer]
        if self._on_lost is not None:
            self._on_lost(reader.peer, reason)
