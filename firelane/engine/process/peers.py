"""Other engines as an engine process knows them: connected by whoever started it."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress

from firelane.contract import PageMemory
from firelane.engine.core import EngineCore
from firelane.errors import PeerLostError
from firelane.kv.transfer.exported import ExportedPool
from firelane.kv.transfer.handshake import load_cipher
from firelane.kv.transfer.page_copy import PageCopier
from firelane.kv.transfer.peers import PeerTransfer
from firelane.link.packets import send
from firelane.nixl.processes import HelperAgents
from firelane.wire.peers import (
    PeerAway,
    PeerConnection,
    PeerGone,
    PeerLost,
    PeerMessage,
    PeerMissing,
    PeerReady,
    PeerSought,
    receive,
)

log = logging.getLogger(__name__)


class EnginePeers:
    """Owns the transfer of pages, the socket over which connections come, and the thread that waits for
    them."""

    def __init__(
        self,
        sock: socket.socket,
        core: EngineCore,
        memory: PageMemory,
        identity: str,
        copier: PageCopier,
        address: str = "",
        states: PageMemory | None = None,
        agents: HelperAgents | None = None,
    ) -> None:
        """address: as EngineConfig.kv_transfer_address. states: as Executor.state_memory. agents: of NIXL, as
        in PeerTransfer."""
        self._sock = sock
        self._pool = ExportedPool(memory, core.kv, identity, copier, states)
        self._transfer = PeerTransfer(self._pool, nixl=agents, on_lost=self._lost, on_sought=self._seek)
        core.have_pages_from(self._transfer, address)
        if address:
            load_cipher()  # while the process may still load libraries
        self._sleeps = False
        self._guard = threading.Lock()
        """Held while pages may be touched, or given to others, that a standby gives back."""
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)
        self._thread.start()

    @property
    def engine_id(self) -> str:
        return self._transfer.engine_id

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()
        self._transfer.close()

    def standby(self) -> None:
        """Hang up: others let go of this engine's memory. Until `wake` nobody is connected."""
        self._sleeps = True
        with self._guard:
            with suppress(PeerLostError):
                send(self._sock, PeerAway())
            self._transfer.hang_up()

    def wake(self) -> None:
        """Be connected to the others again, as soon as the pages are there: memory counts for the control
        group of whoever touches it first, which is to be this engine's."""
        self._sleeps = False
        threading.Thread(target=self._greet, daemon=True).start()

    def _run(self) -> None:
        self._greet()
        with suppress(PeerLostError):  # whoever has started this engine is gone, and it follows
            while True:
                message, fds = receive(self._sock)
                self._act(message, [socket.socket(fileno=fd) for fd in fds])

    def _greet(self) -> None:
        with self._guard, suppress(PeerLostError):
            if not self._sleeps:
                self._transfer.prepare()
                send(self._sock, PeerReady(self.engine_id))

    def _act(self, message: PeerMessage, socks: list[socket.socket]) -> None:
        if isinstance(message, PeerConnection) and socks:
            self._connect(message, socks[0])
        elif isinstance(message, PeerGone):
            self._transfer.detach(message.engine_id)
        elif isinstance(message, PeerMissing):
            log.info("peer_missing engine_id=%s: its pages are computed", message.engine_id)
            self._transfer.give_up(message.engine_id)

    def _connect(self, connection: PeerConnection, sock: socket.socket) -> None:
        if connection.side == "source":
            with self._guard:
                if self._sleeps:
                    sock.close()
                else:
                    self._transfer.export(sock, connection.key, ciphers=connection.ciphers)
        elif connection.key:  # of another server, which may be slow to answer
            threading.Thread(target=self._attach, args=(connection, sock), daemon=True).start()
        else:
            self._attach(connection, sock)

    def _attach(self, connection: PeerConnection, sock: socket.socket) -> None:
        key, engine_id = connection.key, connection.engine_id
        try:
            sought = engine_id if key else ""
            peer = self._transfer.attach(sock, key, sought=sought, ciphers=connection.ciphers)
        except PeerLostError as error:
            self._lost(engine_id, str(error))
            return
        with self._guard:
            if self._sleeps:
                self._transfer.detach(peer)
        log.debug("peer_attached engine_id=%s transport=%s", peer, self._transfer.transport(peer))

    def _seek(self, engine_id: str, address: str) -> None:
        try:
            send(self._sock, PeerSought(engine_id, address))
        except PeerLostError:
            self._transfer.give_up(engine_id)

    def _lost(self, engine_id: str, reason: str) -> None:
        log.warning("peer_lost engine_id=%s reason=%r", engine_id, reason)
        with suppress(PeerLostError):
            send(self._sock, PeerLost(engine_id))
