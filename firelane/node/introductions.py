"""Engines of one model, introduced to each other: each gets a connection to have pages from every other one,
made here, so that none has to find, open or trust anything itself."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import msgspec

from firelane.wire.introductions import Here, Introduce, connection, receive, send

FIRST_DELAY_S, MOST_DELAY_S = 1.0, 60.0
"""Before two engines that have parted are introduced again; it doubles each time."""


class _Seat:
    """One engine's place. engine_id: "" until it is there."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.engine_id = ""
        self.delays: dict[str, float] = {}


class Introductions:
    """Used by the event loop. Owns its ends of the sockets; an engine's end of life is seen there."""

    def __init__(self) -> None:
        self._seats: list[_Seat] = []

    def seat(self) -> socket.socket:
        """The end of a socket for a further engine, which the caller hands to it."""
        ours, theirs = connection()
        ours.setblocking(False)
        seat = _Seat(ours)
        self._seats.append(seat)
        asyncio.get_running_loop().add_reader(ours, self._read, seat)
        return theirs

    def close(self) -> None:
        for seat in list(self._seats):
            self._leave(seat)

    def _read(self, seat: _Seat) -> None:
        try:
            received = receive(seat.sock)
        except BlockingIOError:
            return
        except (OSError, msgspec.DecodeError):
            received = None
        if received is None:
            self._leave(seat)
        elif isinstance(received[0], Here):
            self._welcome(seat, received[0].engine_id)
        elif not isinstance(received[0], Introduce):
            self._reunite(seat, received[0].engine_id)

    def _welcome(self, seat: _Seat, engine_id: str) -> None:
        seat.engine_id = engine_id
        for other in self._seats:
            if other is not seat and other.engine_id:
                _connect(seat, other)
                _connect(other, seat)

    def _reunite(self, seat: _Seat, engine_id: str) -> None:
        delay_s = seat.delays.get(engine_id, FIRST_DELAY_S)
        seat.delays[engine_id] = min(2 * delay_s, MOST_DELAY_S)
        asyncio.get_running_loop().call_later(delay_s, self._introduce_again, seat, engine_id)

    def _introduce_again(self, seat: _Seat, engine_id: str) -> None:
        for other in self._seats:
            if seat in self._seats and other.engine_id == engine_id:
                _connect(seat, other)

    def _leave(self, seat: _Seat) -> None:
        self._seats.remove(seat)
        asyncio.get_running_loop().remove_reader(seat.sock)
        seat.sock.close()


def _connect(reader: _Seat, source: _Seat) -> None:
    """An engine that has gone is seen by its socket's end."""
    ours, theirs = socket.socketpair()
    with ours, theirs, suppress(OSError):
        send(source.sock, Introduce("source", reader.engine_id), (ours.fileno(),))
        send(reader.sock, Introduce("reader", source.engine_id), (theirs.fileno(),))
