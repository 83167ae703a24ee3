"""Messages over a socket that keeps them apart (SOCK_SEQPACKET), between processes of one machine, with
descriptors that travel along."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from firelane.errors import FrameError, PeerLostError
from firelane.link.framing import decode
from firelane.link.line import close_all

MessageT = TypeVar("MessageT")
_encoder = msgspec.msgpack.Encoder()


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of such a socket."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
    """fds: descriptors that travel with it. Raises PeerLostError, also where a socket that does not wait is
    full, and TimeoutError."""
    try:
        socket.send_fds(sock, [_encoder.encode(message)], fds)
    except TimeoutError:
        raise
    except OSError as error:
        raise PeerLostError(f"the other end has gone: {error.strerror or error}") from error


def receive(
    sock: socket.socket, decoder: msgspec.msgpack.Decoder[MessageT], most_bytes: int, most_fds: int
) -> tuple[MessageT, list[int]]:
    """The next message and its descriptors. Raises PeerLostError at the end, FrameError for what is no
    message, TimeoutError, and BlockingIOError where there is none and the socket does not wait."""
    try:
        data, fds, _, _ = socket.recv_fds(sock, most_bytes, most_fds)
    except (TimeoutError, BlockingIOError):
        raise
    except OSError as error:
        raise PeerLostError(f"the other end has gone: {error.strerror or error}") from error
    if not data:
        raise PeerLostError("the other end has closed the connection")
    try:
        return decode(decoder, data), fds
    except FrameError:
        close_all(fds)
        raise
