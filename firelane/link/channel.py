"""One end of a connection that never waits to send: a stream socket, used without an event loop."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from firelane.errors import PeerLostError
from firelane.link.framing import MAX_FRAME_BYTES, FrameReader, encode
from firelane.link.line import close_all

READ_BYTES = 1 << 16
FrameT = TypeVar("FrameT")


class Channel(Generic[FrameT]):
    """Sends and receives frames. Owns the socket. Any thread may send; one thread receives.

    A slow peer does not hold up `send`: what the socket does not take is kept and goes out with later
    calls. Only when more than `max_unsent_bytes` are kept does `send` wait.

    is_lost: the peer has gone. descriptors: that have come, in their order, before the frames that they
    belong to; whoever takes one owns it.
    """

    def __init__(
        self,
        sock: socket.socket,
        frame_type: Any,
        max_unsent_bytes: int = MAX_FRAME_BYTES,
        *,
        most_fds: int = 0,
    ) -> None:
        """most_fds: descriptors that may come with one frame."""
        sock.setblocking(False)
        self._most_fds, self.is_lost = most_fds, False
        self.descriptors: deque[int] = deque()
        self._attached: deque[tuple[int, list[int]]] = deque()
        """Descriptors that go out with the byte at this place of what is unsent."""
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

    def send(self, frame: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        """fds: descriptors that travel with it, and stay the caller's. Raises PeerLostError."""
        with self._sending:
            if fds:
                self._attached.append((len(self._unsent), [os.dup(fd) for fd in fds]))
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
        """Idempotent."""
        close_all(self.descriptors)
        close_all(fd for _, fds in self._attached for fd in fds)
        self.descriptors.clear()
        self._attached.clear()
        self._sock.close()

    def _read(self) -> list[FrameT]:
        frames: list[FrameT] = []
        while True:
            try:
                data = self._receive_some()
            except BlockingIOError:
                return frames
            except OSError as error:
                raise self._lost(f"connection lost: {error}") from error
            if not data and frames:
                return frames  # the next call meets the end again
            if not data:
                raise self._lost("the peer has closed the connection")
            frames += self._reader.feed(data)
            if len(data) < READ_BYTES and not self._most_fds:
                return frames

    def _receive_some(self) -> bytes:
        """Read some bytes; one call ends where descriptors come with them."""
        if not self._most_fds:
            return self._sock.recv(READ_BYTES)
        data, fds, _, _ = socket.recv_fds(self._sock, READ_BYTES, self._most_fds)
        self.descriptors += fds
        return data

    def _flush(self) -> None:
        with self._sending:
            while self._unsent:
                try:
                    sent = self._send_some() if self._attached else self._sock.send(self._unsent)
                except BlockingIOError:
                    return
                except OSError as error:
                    raise self._lost(f"connection lost: {error}") from error
                del self._unsent[:sent]

    def _lost(self, reason: str) -> PeerLostError:
        self.is_lost = True
        return PeerLostError(reason)

    def _send_some(self) -> int:
        """Bytes up to the next descriptors, or those with the bytes behind them."""
        place, fds = self._attached[0]
        if place:
            sent = self._sock.send(self._unsent[:place])
        else:
            end = self._attached[1][0] if len(self._attached) > 1 else len(self._unsent)
            sent = socket.send_fds(self._sock, [self._unsent[:end]], fds)
            close_all(fds)
            self._attached.popleft()
        self._attached = deque((place - sent, fds) for place, fds in self._attached)
        return sent

    def _poll(self, timeout_s: float | None, *, reading: bool) -> None:
        """Wait until the socket can be used. What is unsent may go out meanwhile."""
        poller = select.poll()
        poller.register(
            self._sock, (select.POLLIN if reading else 0) | (select.POLLOUT if self._unsent else 0)
        )
        poller.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
