"""Messages between two engines, over a connected stream socket with deadlines.

    source -> reader   Hello
    reader -> source   Join        who it is, what its pages are like, and a proof that it has the key
    source -> reader   Joined      the same of the source, with descriptors of its memory if they can travel
                       Refused     instead: why not
    reader -> source   Find        any number of times
    source -> reader   Found       the same number of times

Where the reader neither maps the source's memory nor reads it by NIXL, the pages follow their Found: the
bytes of all that were found, in order, then the tags (64 bits each) that they have once their bytes are on
the way. One Find asks for pages, or for states, which then are said to be pages, too. Of pages that are
copied on their way it asks for as many as there is room for at both ends (most_staged of outgoing.py): of
more, the rest is not found.

Under a cipher (cipher.py) all that follows Joined travels in records.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from firelane.kv.transfer.page_copy import HungUpError, LateError, Numbers, PageCopier, Sums

VERSION = 5
LENGTH_BYTES = 4
MOST_BYTES = 1 << 20
"""Of one message."""
TAG_BYTES = 8
NONCE_BYTES = 32


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """version: of these messages. ciphers: the source gives pages under a cipher alone."""

    version: int
    nonce: bytes
    ciphers: bool = False


class NixlMemory(msgspec.Struct, frozen=True, array_like=True):
    """The part of an engine's NIXL agent that others see. metadata: as NIXL makes it. addresses: of pages,
    tags, and those of states, in the agent's process."""

    metadata: bytes
    addresses: list[int]


class Join(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="join"):
    """identity: as in wire.Ready. sizes: as in ExportedPool. maps: the reader maps the source's memory, if it
    can. nixl: else it reads it by NIXL, if the source can. share: of the key for a cipher; b"": there is
    none."""

    nonce: bytes
    engine_id: str
    identity: str
    layout_id: str
    sizes: list[int]
    maps: bool
    nixl: bool
    proof: bytes
    share: bytes = b""


class Joined(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="joined"):
    """counts: as in ExportedPool. maps: descriptors of pages and of tags came with this message. nixl: of the
    memory that may be read so, where it is not mapped. share: as in Join, where that has one."""

    engine_id: str
    counts: list[int]
    maps: bool
    nixl: NixlMemory | None
    proof: bytes
    share: bytes = b""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    reason: str


class Find(msgspec.Struct, frozen=True, array_like=True, tag="find"):
    """Pages by cache group and name, or states. only_first: the first of these that is there, alone.
    streams: pages follow over this connection."""

    wanted: list[tuple[int, bytes]]
    only_first: bool = False
    streams: bool = True


class Found(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """For each page that was asked for: its number, or -1; its tag; the checksum of its content."""

    pages: list[int]
    tags: list[int]
    checksums: list[int]


Message = Hello | Join | Joined | Refused | Find | Found
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class ConnectionLostError(Exception):
    """The peer is gone, or sends what is no message."""


def proof(key: bytes, side: str, *parts: bytes) -> bytes:
    """A proof that only one who has the key can give, to these nonces and about these facts."""
    return hmac.new(
        key, b"\0".join([side.encode(), *(hashlib.sha256(p).digest() for p in parts)]), "sha256"
    ).digest()


class Records(Protocol):
    """A cipher over the bytes of a connection, both ways."""

    def sealed(self, data: memoryview) -> Iterable[memoryview]:
        """What travels in place of these bytes; each part until the next one is asked for."""
        ...

    def open_into(self, view: memoryview, receive_into: Callable[[memoryview], None]) -> None:
        """Fill the view with the next bytes of the other end, from what `receive_into` fills views with.
        Raises ConnectionLostError for bytes that the other end has not sent, or not now."""
        ...


class Line:
    """One connection, used by one thread. Owns the socket. Every call may raise ConnectionLostError, and
    LateError once `deadline_s` (of time.monotonic()) is over; None: it waits for as long as it takes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.deadline_s: float | None = None
        self._records: Records | None = None

    def encrypt(self, records: Records) -> None:
        """Have all bytes of both ends travel in these records from now on."""
        self._records = records

    @property
    def carries_descriptors(self) -> bool:
        return self._sock.family == socket.AF_UNIX

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """fds: descriptors that travel with it."""
        body = _encoder.encode(message)
        data = memoryview(len(body).to_bytes(LENGTH_BYTES, "little") + body)
        if fds:
            data = data[self._call(lambda: socket.send_fds(self._sock, [data], fds)) :]
        self.send_bytes(data)

    def send_bytes(self, data: memoryview) -> None:
        for part in (data,) if self._records is None else self._records.sealed(data):
            self._send_all(part)

    def _send_all(self, left: memoryview) -> None:
        while left:
            left = left[self._call(lambda view=left: self._sock.send(view)) :]

    def receive(self, kind: type[Any], most_fds: int = 0) -> Any:
        """The next message, and the descriptors that came with it where there may be some. Raises
        ConnectionLostError, with its reason where it is a Refused, unless it is of this kind."""
        fds = list[int]()
        head = self._some(LENGTH_BYTES, fds, most_fds)
        length = int.from_bytes(head, "little")
        if length > MOST_BYTES:
            raise ConnectionLostError(f"a message of {length} bytes: not a Firelane engine?")
        body = bytearray(length)
        self.receive_into(memoryview(body))
        try:
            message = _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConnectionLostError(f"not a message: {error}") from error
        if isinstance(message, Refused):
            raise ConnectionLostError(message.reason)
        if not isinstance(message, kind):
            raise ConnectionLostError(f"{type(message).__name__} in place of {kind.__name__}")
        return (message, fds) if most_fds else message

    def receive_into(self, view: memoryview) -> None:
        if self._records is None:
            self._receive_all(view)
        else:
            self._records.open_into(view, self._receive_all)

    def _receive_all(self, view: memoryview) -> None:
        while view:
            count = self._call(lambda into=view: self._sock.recv_into(into))
            if not count:
                raise ConnectionLostError("it has hung up")
            view = view[count:]

    def send_pages(self, copier: PageCopier, pages: NDArray[np.uint8], numbers: Numbers) -> None:
        """As in PageCopier.send()."""
        if self._records is not None:
            for number in numbers:
                self.send_bytes(pages[number].data)
            return
        self._call(lambda: copier.send(self._sock, pages, numbers, self._deadline_s()))

    def receive_pages(self, copier: PageCopier, pages: NDArray[np.uint8], places: Numbers) -> Sums:
        """As in PageCopier.receive()."""
        if self._records is not None:
            for place in places:
                self.receive_into(pages[place].data)
            return np.array([copier.checksum(pages[place]) for place in places], np.uint64)
        return self._call(lambda: copier.receive(self._sock, pages, places, self._deadline_s()))

    def close(self) -> None:
        self._sock.close()

    def hang_up(self) -> None:
        """From any thread: whoever waits for the peer gets ConnectionLostError."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _some(self, count: int, fds: list[int], most_fds: int) -> bytes:
        if not most_fds or not self.carries_descriptors:
            data = bytearray(count)
            self.receive_into(memoryview(data))
            return bytes(data)
        data, came, _, _ = self._call(lambda: socket.recv_fds(self._sock, count, most_fds))
        fds += came
        rest = bytearray(count - len(data))
        self.receive_into(memoryview(rest))
        return data + rest

    def _call(self, operation: Any) -> Any:
        self._sock.settimeout(self._left_s())
        try:
            return operation()
        except TimeoutError as error:
            raise LateError from error
        except HungUpError as error:
            raise ConnectionLostError("it has hung up") from error
        except OSError as error:
            raise ConnectionLostError(error.strerror or str(error)) from error

    def _deadline_s(self) -> float:
        assert self.deadline_s is not None
        return self.deadline_s

    def _left_s(self) -> float | None:
        if self.deadline_s is None:
            return None
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise LateError
        return left_s
