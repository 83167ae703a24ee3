"""Messages between a Worker and its process: a length of four bytes, little-endian, and so many bytes."""

from __future__ import annotations

import socket

LENGTH_BYTES = 4
READ_BYTES = 1 << 18


class OverrunError(Exception):
    """A request has ended its process, which crashed or took more than it may, or its answer is too long."""


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def receive(sock: socket.socket) -> bytes:
    """The next request, in the process; b"" where no more comes."""
    data, size = bytearray(), LENGTH_BYTES
    while len(data) < size:
        part = sock.recv(min(size - len(data), READ_BYTES))  # what follows is the next one's
        if not part:
            return b""
        data += part
        if size == LENGTH_BYTES and len(data) >= LENGTH_BYTES:
            size += int.from_bytes(data[:LENGTH_BYTES], "little")
    del data[:LENGTH_BYTES]
    return bytes(data)


class ReplyReader:
    """Frames as they come."""

    def __init__(self, most_bytes: int) -> None:
        self._body = bytearray()
        self._size, self._most_bytes = -1, most_bytes

    def add(self, data: bytes) -> None:
        """Raises ConnectionError where no more comes, OverrunError where the answer is too long."""
        self._body += data
        if not data:
            raise ConnectionError
        self._begin()
        if self._size > self._most_bytes:
            raise OverrunError

    def take(self) -> bytearray:
        """The body of a frame that is whole, without its length; not copied, it may be large."""
        body, rest = self._body, self._body[self._size :]
        del body[self._size :]
        self._body, self._size = rest, -1
        self._begin()
        return body

    def _begin(self) -> None:
        """Read the length, once it is here."""
        if self._size < 0 and len(self._body) >= LENGTH_BYTES:
            self._size = int.from_bytes(self._body[:LENGTH_BYTES], "little")
            del self._body[:LENGTH_BYTES]

    @property
    def is_whole(self) -> bool:
        return 0 <= self._size <= len(self._body)
