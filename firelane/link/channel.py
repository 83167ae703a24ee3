"""One end of a connection that never waits to send: a stream socket, used without an event loop."""

from __future__ import annotations

import select
import socket
import threading
from typing import Any, Generic, TypeVar

import msgspec

from firelane.errors import PeerLostError
from firelane.link.framing import MAX_FRAME_BYTES, FrameReader, encode

READ_BYTES = 1 << 16
FrameT = TypeVar("FrameT")


class Channel(Generic[FrameT]):
    """Sends and receives frames. Owns the socket. Any thread may send; one thread receives.

    A slow peer does not hold up `send`: what the socket does not take is kept and goes out with later
    calls. Only when more than `max_unsent_bytes` are kept does `send` wait.
    """

    def __init__(self, sock: socket.socket, frame_type: Any, max_unsent_bytes: int = MAX_FRAME_BYTES) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._reader: FrameReader[FrameT] = FrameReader(frame_type)
        self._unsent = bytearray()
        self._sending = threading.RLock()  # guards _unsent
        self._max_unsent_bytes = max_unsent_bytes

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the socket has not taken yet."""
        return len(self._unsent)

    def push(self) -> None:
        """Send what is unsent, as far as the socket takes it. Raises PeerLostError."""
        self._flush()

    def send(self, frame: msgspec.Struct) -> None:
        """Raises PeerLostError."""
        with self._sending:
            self._unsent += encode(frame)
            self._flush()
            while len(self._unsent) > self._max_unsent_bytes:
                self._poll(None, reading=False)
                self._flush()

    def receive(self, timeout_s: float | None = 0.0) -> list[FrameT]:
        """All frames that have arrived; waits up to `timeout_s` (None: for ever) for the first bytes.

        Raises PeerLostError at the end of the stream, FrameError on garbage.
        """
        frames = self._read()
        if not frames and timeout_s != 0.0:
            self._poll(timeout_s, reading=True)
            self._flush()
            frames = self._read()
        return frames

    def flush(self, timeout_s: float) -> None:
        """Wait until all has been sent, or the time is over."""
        self._flush()
        if self._unsent:
            self._poll(timeout_s, reading=False)
            self._flush()

    def close(self) -> None:
        self._sock.close()

    def _read(self) -> list[FrameT]:
        frames: list[FrameT] = []
        while True:
            try:
                data = self._sock.recv(READ_BYTES)
            except BlockingIOError:
                return frames
            except OSError as error:
                raise PeerLostError(f"connection lost: {error}") from error
            if not data:
                raise PeerLostError("the peer has closed the connection")
            frames += self._reader.feed(data)
            if len(data) < READ_BYTES:
                return frames

    def _flush(self) -> None:
        with self._sending:
            while self._unsent:
                try:
                    sent = self._sock.send(self._unsent)
                except BlockingIOError:
                    return
                except OSError as error:
                    raise PeerLostError(f"connection lost: {error}") from error
                del self._unsent[:sent]

    def _poll(self, timeout_s: float | None, *, reading: bool) -> None:
        """Wait until the socket can be used. What is unsent may go out meanwhile."""
        poller = select.poll()
        poller.register(
            self._sock, (select.POLLIN if reading else 0) | (select.POLLOUT if self._unsent else 0)
        )
        poller.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
