"""Connections between the engines of one model: each gets a connection to have pages from every other one,
made here, so that none has to find, open or trust anything itself."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from firelane.errors import PeerLostError
from firelane.link.line import close_all
from firelane.link.packets import pair, send
from firelane.node.remote_peers import RemotePeers
from firelane.wire.peers import (
    PeerAway,
    PeerConnection,
    PeerGone,
    PeerLost,
    PeerMissing,
    PeerReady,
    PeerSought,
    receive,
)

FIRST_DELAY_S, MOST_DELAY_S = 1.0, 60.0
"""Before two engines that have parted are connected again; it doubles each time."""


class _Member:
    """One engine's place. engine_id: "" until it is there."""

    def __init__(self, sock: socket.socket, place: int) -> None:
        self.sock, self.place = sock, place
        self.engine_id = ""
        self.delays: dict[str, float] = {}


class PeerConnections:
    """Used by the event loop. Owns its ends of the sockets; an engine's end of life is seen there."""

    def __init__(self, *, connects: bool = True) -> None:
        """connects: these engines with each other."""
        self._members: list[_Member] = []
        self._connects = connects
        self._remote: RemotePeers | None = None

    def reach(self, remote: RemotePeers) -> None:
        """From now on engines have connections to those of other servers, too. Owns `remote`."""
        self._remote = remote

    def join(self, place: int = 0) -> socket.socket:
        """The end of a socket for a further engine, which the caller hands to it."""
        ours, theirs = pair()
        ours.setblocking(False)
        member = _Member(ours, place)
        self._members.append(member)
        asyncio.get_running_loop().add_reader(ours, self._read, member)
        return theirs

    def close(self) -> None:
        for member in list(self._members):
            self._leave(member)
        if self._remote is not None:
            self._remote.close()

    def _read(self, member: _Member) -> None:
        try:
            message, fds = receive(member.sock)
        except BlockingIOError:
            return
        except PeerLostError:
            self._leave(member)
            return
        close_all(fds)  # nobody asks an engine for one
        if isinstance(message, PeerReady):
            self._greet(member, message.engine_id)
        elif isinstance(message, PeerAway):
            self._gone(member)
        elif isinstance(message, PeerSought):
            self._seek(member, message)
        elif isinstance(message, PeerLost):
            self._reconnect_later(member, message.engine_id)

    def _greet(self, member: _Member, engine_id: str) -> None:
        member.engine_id = engine_id
        if self._remote is not None:
            self._remote.joined(member.place, member.sock)
        if self._connects:
            self._connect_all(member)

    def _gone(self, member: _Member) -> None:
        """Others let go of its memory; none is connected to it until it is ready."""
        engine_id, member.engine_id = member.engine_id, ""
        member.delays.clear()
        if engine_id and self._connects:
            for other in self._members:
                if other is not member:
                    other.delays.pop(engine_id, None)
                    with suppress(PeerLostError):
                        send(other.sock, PeerGone(engine_id))

    def _seek(self, member: _Member, sought: PeerSought) -> None:
        if self._remote is not None:
            self._remote.seek(member.sock, sought.engine_id, sought.address)
            return
        with suppress(PeerLostError):
            send(member.sock, PeerMissing(sought.engine_id))

    def _connect_all(self, member: _Member) -> None:
        for other in self._members:
            if other is not member and other.engine_id:
                _connect(member, other)
                _connect(other, member)

    def _reconnect_later(self, member: _Member, engine_id: str) -> None:
        """Unless it is of another server, has ended, or is in standby: then it comes back by itself, if it
        does."""
        if all(other.engine_id != engine_id for other in self._members):
            return
        delay_s = member.delays.get(engine_id, FIRST_DELAY_S)
        member.delays[engine_id] = min(2 * delay_s, MOST_DELAY_S)
        asyncio.get_running_loop().call_later(delay_s, self._reconnect, member, engine_id)

    def _reconnect(self, member: _Member, engine_id: str) -> None:
        for other in self._members:
            if member in self._members and other.engine_id == engine_id:
                _connect(member, other)

    def _leave(self, member: _Member) -> None:
        self._members.remove(member)
        self._gone(member)
        asyncio.get_running_loop().remove_reader(member.sock)
        if self._remote is not None:
            self._remote.left(member.sock)
        member.sock.close()


def _connect(reader: _Member, source: _Member) -> None:
    """An engine that has gone is seen by its socket's end."""
    ours, theirs = socket.socketpair()
    with ours, theirs, suppress(PeerLostError):
        send(source.sock, PeerConnection("source", reader.engine_id), (ours.fileno(),))
        send(reader.sock, PeerConnection("reader", source.engine_id), (theirs.fileno(),))
