"""All connections of one engine to others."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from firelane.errors import PeerLostError
from firelane.kv.pool import WantedPage, WantedState
from firelane.kv.transfer.exported import ExportedPool
from firelane.kv.transfer.handshake import Side
from firelane.kv.transfer.messages import PageLine
from firelane.kv.transfer.nixl import START_S, NixlTransport
from firelane.kv.transfer.reader import PageReader, Pull
from firelane.kv.transfer.seam import Settled
from firelane.kv.transfer.source import PageServer
from firelane.nixl.processes import HelperAgents

MOST_READERS, MOST_SOURCES = 256, 256
"""Connections, each with a thread. Beyond them the oldest reader is given up, and of sources the oldest whose
reader has not proven yet that it has the key; where all have, a new one is refused."""


class PeerTransfer:
    """A KVTransfer between engines. Pages come by shared memory where the connection is a Unix socket and the
    source's pages can be mapped, else by NIXL where both ends have it, else over the connection itself.
    on_lost: called by a thread with the engine_id of a peer that is gone or too slow, and the reason.
    on_sought: called with engine_id and address of one that is to be connected; answered with `attach` or
    `give_up`. Owns its threads, connections and `pool`."""

    def __init__(
        self,
        pool: ExportedPool,
        *,
        key: bytes = b"",
        maps: bool = True,
        nixl: HelperAgents | None = None,
        on_lost: Callable[[str, str], None] | None = None,
        on_sought: Callable[[str, str], None] | None = None,
    ) -> None:
        """key: of the cluster; none is needed between engines that one parent has connected. maps: False =
        pages are never mapped. nixl: for agents of NIXL, taken over; None: pages do not travel by it."""
        transport = None if nixl is None else NixlTransport(nixl, pool)
        self._side = Side(secrets.token_hex(16), pool, key, transport)
        self._maps, self._on_lost, self._on_sought = maps, on_lost, on_sought
        self._readers: dict[str, PageReader] = {}
        self._sources: dict[PageServer, None] = {}
        """In the order in which they came."""
        self._sought: dict[str, list[Pull]] = {}
        """Pulls from peers that are being connected."""
        self._guard = threading.Lock()
        """The guard of _readers, _sources and _sought."""
        self._settled: SimpleQueue[Settled] = SimpleQueue()
        self._tickets = 0

    @property
    def engine_id(self) -> str:
        return self._side.engine_id

    @property
    def peers(self) -> list[str]:
        """The peers that pages can be pulled from."""
        return list(self._readers)

    def transport(self, peer: str) -> str:
        """The way of pages from a peer: shm, nixl or tcp; "" of an unknown one."""
        reader = self._readers.get(peer)
        return "" if reader is None else reader.transport

    def prepare(self) -> None:
        """Have all there that pulls need: takes as long as zeroing the pages, and starting an agent."""
        self._side.pool.populate()
        if self._side.nixl is not None:
            self._side.nixl.agent(START_S)

    def export(self, sock: socket.socket, key: bytes = b"", *, ciphers: bool = False) -> None:
        """key: in place of the transfer's. ciphers: as in Side."""
        with self._guard:
            if self._has_room_for_source():
                source = PageServer(PageLine(sock), self._with(key, ciphers), self._source_ended)
                self._sources[source] = None
            else:
                sock.close()

    def attach(
        self, sock: socket.socket, key: bytes = b"", *, sought: str = "", ciphers: bool = False
    ) -> str:
        """key, ciphers: as in `export`. sought: the peer that is expected at the other end."""
        try:
            side = self._with(key, ciphers)
            reader = PageReader(PageLine(sock), side, self._settled, self._reader_ended, maps=self._maps)
        except PeerLostError:
            self.give_up(sought)
            raise
        with self._guard:
            before = [self._readers.pop(reader.peer, None)]
            if len(self._readers) >= MOST_READERS:
                before.append(self._readers.pop(next(iter(self._readers))))
            self._readers[reader.peer] = reader
            self._decide(sought, reader if reader.peer == sought else None)
        for one in before:
            if one is not None:
                one.close()
        return reader.peer

    def seek(self, peer: str, address: str) -> None:
        with self._guard:
            if peer in self._readers or peer in self._sought:
                return
            self._sought[peer] = []
        if self._on_sought is None:
            self.give_up(peer)
        else:
            self._on_sought(peer, address)

    def give_up(self, peer: str) -> None:
        """There will be no connection to this peer that is sought; an unknown one is ignored."""
        with self._guard:
            self._decide(peer, None)

    def pull(
        self,
        peer: str,
        wanted: Sequence[WantedPage],
        mine: Sequence[int],
        deadline_s: float,
        state: WantedState | None = None,
    ) -> int:
        self._tickets += 1
        pull = Pull(self._tickets, wanted, mine, deadline_s, state)
        with self._guard:
            if peer in self._readers:
                self._readers[peer].pull(pull)
            elif peer in self._sought:
                self._sought[peer].append(pull)
            else:
                self._settled.put(_lost(pull))
        return self._tickets

    def poll(self) -> list[Settled]:
        if self._sought:
            self._expire()
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

    def hang_up(self) -> None:
        """End all connections: nobody has anything mapped here then, and here nothing of others is."""
        for peer in self.peers:
            self.detach(peer)
        with self._guard:
            sources = list(self._sources)
        for source in sources:
            source.close()

    def close(self) -> None:
        """Hang up on all; idempotent."""
        self.hang_up()
        if self._side.nixl is not None:
            self._side.nixl.close()
        self._side.pool.close()

    def _has_room_for_source(self) -> bool:
        """Whoever is silent, or has no key, keeps nobody out. Called under the guard."""
        if len(self._sources) < MOST_SOURCES:
            return True
        silent = next((source for source in self._sources if not source.is_proven), None)
        if silent is None:
            return False
        del self._sources[silent]
        silent.hang_up()
        return True

    def _with(self, key: bytes, ciphers: bool) -> Side:
        return self._side._replace(key=key or self._side.key, ciphers=ciphers)

    def _decide(self, sought: str, reader: PageReader | None) -> None:
        """Pulls that have waited go to the reader, as far as there is one and their time is not over."""
        now_s = time.monotonic()
        for pull in self._sought.pop(sought, []):
            if reader is not None and now_s < pull.deadline_s:
                reader.pull(pull)
            else:
                self._settled.put(_lost(pull))

    def _expire(self) -> None:
        """Pulls whose peer was not found in their time."""
        now_s = time.monotonic()
        with self._guard:
            for peer, pulls in list(self._sought.items()):
                if pulls and all(pull.deadline_s <= now_s for pull in pulls):
                    self._decide(peer, None)

    def _source_ended(self, source: PageServer, reason: str) -> None:
        del reason
        with self._guard:
            self._sources.pop(source, None)

    def _reader_ended(self, reader: PageReader, reason: str) -> None:
        with self._guard:
            if self._readers.get(reader.peer) is reader:
                del self._readers[reader.peer]
        if self._on_lost is not None:
            self._on_lost(reader.peer, reason)


def _lost(pull: Pull) -> Settled:
    return Settled(pull.ticket, "lost", [False] * len(pull.mine), 0, 0.0)
