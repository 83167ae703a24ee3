"""One end of a connection with a deadline, on which one thread waits for messages, bytes and descriptors."""

from __future__ import annotations

import functools
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec

from firelane.errors import FrameError, PeerLostError
from firelane.link.framing import LENGTH_BYTES, checked_length, decode, encode

MOST_BYTES = 1 << 20
"""Bytes of one message, at most."""
ResultT = TypeVar("ResultT")


class Records(Protocol):
    """A cipher over the bytes of a connection, both ways."""

    def sealed(self, data: memoryview) -> Iterable[memoryview]:
        """Bytes that travel in place of these; each part is valid until the next one is asked for."""
        ...

    def open_into(self, view: memoryview, receive_into: Callable[[memoryview], None]) -> None:
        """Fill the view with the next bytes of the other end, from what `receive_into` fills views with.
        Raises PeerLostError for bytes that the other end has not sent, or not now."""
        ...


class Line:
    """One connection over a stream socket. Owns the socket. Every call may raise PeerLostError, FrameError
    for what is no message, and TimeoutError once `deadline_s` (of time.monotonic()) is over; None: it waits
    for as long as it takes."""

    def __init__(self, sock: socket.socket, name: str = "it", most_bytes: int = MOST_BYTES) -> None:
        """name: of the other end, in errors. most_bytes: of a message that comes."""
        self._sock, self.name, self._most_bytes = sock, name, most_bytes
        self.deadline_s: float | None = None
        self._records: Records | None = None

    def encrypt(self, records: Records) -> None:
        """Have all bytes of both ends travel in these records from now on."""
        self._records = records

    @property
    def is_encrypted(self) -> bool:
        return self._records is not None

    @property
    def carries_descriptors(self) -> bool:
        return self._sock.family == socket.AF_UNIX

    @property
    def has_news(self) -> bool:
        """Whether the other end has said something, or is gone."""
        return bool(select.select([self._sock], [], [], 0)[0])

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        """fds: descriptors that travel with it."""
        data = memoryview(encode(message))
        if fds:
            data = data[self.call(lambda sock: socket.send_fds(sock, [data], fds)) :]
        self.send_bytes(data)

    def send_bytes(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        for part in (view,) if self._records is None else self._records.sealed(view):
            self._send_all(part)

    def receive(self, kind: type[ResultT]) -> ResultT:
        """The next message, which has to be of this kind."""
        return self.receive_with(kind)[0]

    def receive_with(self, kind: Any, most_fds: int = 0) -> tuple[Any, list[int]]:
        """The next message, which has to be of this kind, and the descriptors that came with it."""
        fds = list[int]()
        head = self._head(fds, most_fds)
        try:
            body = self.receive_bytes(checked_length(head, self._most_bytes))
            return decode(_decoder(kind), body), fds
        except BaseException as error:
            close_all(fds)
            if isinstance(error, FrameError):
                raise FrameError(f"{self.name} sends what is no message for this end: {error}") from error
            raise

    def receive_bytes(self, count: int) -> bytearray:
        data = bytearray(count)
        self.receive_into(memoryview(data))
        return data

    def receive_into(self, view: memoryview) -> None:
        if self._records is None:
            self._receive_all(view)
        else:
            self._records.open_into(view, self._receive_all)

    def call(self, operation: Callable[[socket.socket], ResultT]) -> ResultT:
        """Have something done with the socket, within the deadline."""
        try:
            left_s = self._left_s()
            if left_s is not None or self._sock.gettimeout() is not None:
                self._sock.settimeout(left_s)
            return operation(self._sock)
        except TimeoutError:
            raise
        except OSError as error:
            raise PeerLostError(f"{self.name}: {error.strerror or error}") from error

    def close(self) -> None:
        """Idempotent. Whoever waits for the other end waits no longer."""
        self.hang_up()
        self._sock.close()

    def hang_up(self) -> None:
        """From any thread: whoever waits for the other end gets PeerLostError."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _head(self, fds: list[int], most_fds: int) -> bytes | bytearray:
        if not most_fds or not self.carries_descriptors:
            return self.receive_bytes(LENGTH_BYTES)
        data, came, _, _ = self.call(lambda sock: socket.recv_fds(sock, LENGTH_BYTES, most_fds))
        fds += came
        return data + self.receive_bytes(LENGTH_BYTES - len(data))

    def _send_all(self, left: memoryview) -> None:
        while left:
            left = left[self.call(lambda sock, view=left: sock.send(view)) :]

    def _receive_all(self, view: memoryview) -> None:
        while view:
            count = self.call(lambda sock, into=view: sock.recv_into(into))
            if not count:
                raise PeerLostError(f"{self.name} has closed the connection")
            view = view[count:]

    def _left_s(self) -> float | None:
        if self.deadline_s is None:
            return None
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)
