"""Messages between the process that owns a server and its gateway processes, file descriptors included."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from firelane.errors import FrameError
from firelane.link.framing import FrameReader, encode
from firelane.telemetry.metrics import Dump

READ_BYTES = 1 << 16
MOST_FDS = 64
POLL_S = 0.005


class Setup(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="setup"):
    """A gateway process is to serve. index: its place, which a later one may take; number: its own, in its
    requests' ids. config: of the gateway, as JSON. recovers: whether requests outlive their engine, by model.
    created: Unix time of the server's start. With it come the shared counts and the sockets to listen on."""

    index: int
    number: int
    places: int
    config: bytes
    recovers: dict[str, bool]
    created: int


class Engine(msgspec.Struct, frozen=True, array_like=True, tag="engine"):
    """A connection to an engine, which comes with it. place: of the engine; the next one in it, too. role: as
    in Role."""

    place: int
    model: str
    replica: str
    role: str = ""


class Role(msgspec.Struct, frozen=True, array_like=True, tag="role"):
    """The part of requests that is sent to engines of this place from now on; "": the engine's own."""

    place: int
    role: str


class Retire(msgspec.Struct, frozen=True, array_like=True, tag="retire"):
    """No new requests go to this engine; those there end, or are moved. Answered with Emptied."""

    place: int


class Remove(msgspec.Struct, frozen=True, array_like=True, tag="remove"):
    """This engine is no more."""

    place: int


class Model(msgspec.Struct, frozen=True, array_like=True, tag="model"):
    """A model is served from now on, or in another way. config: as JSON. recovers: its requests outlive their
    engine."""

    config: bytes
    recovers: bool


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """A model is not served any more."""

    model: str


class Resident(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="resident"):
    """A model's place: see gateway.requests.residence."""

    model: str
    is_cold: bool = False
    state: str = ""
    reason: str = ""
    left_s: int = 1
    leaves: bool = False
    deadline_s: float = 0.0


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """To the Want of this turn: the model serves, or why not."""

    turn: int
    model: str
    error: str
    retry_after_s: int | None


class Want(msgspec.Struct, frozen=True, array_like=True, tag="want"):
    """A request waits for a model."""

    turn: int
    model: str


class Used(msgspec.Struct, frozen=True, array_like=True, tag="used"):
    """Requests come for a model. keep_s: as in Residence.used."""

    model: str
    keep_s: float | None


class Reload(msgspec.Struct, frozen=True, array_like=True, tag="reload"):
    """Keys, prices and certificates are to be read again."""


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """End: after timeout_s at the latest, or (None) when nothing is left of what was accepted."""

    timeout_s: float | None


class Listen(msgspec.Struct, frozen=True, array_like=True, tag="listen"):
    """Accept connections, on the sockets that come with it; none: accept no more. Answered with Listening."""


class Collect(msgspec.Struct, frozen=True, array_like=True, tag="collect"):
    """The process is to send its metrics. Answered with Figures of this turn."""

    turn: int


class Figures(msgspec.Struct, frozen=True, array_like=True, tag="figures"):
    """Metrics of the process, as Registry.dump gives them. turn: of the Collect that it answers."""

    turn: int
    dump: Dump


class Alive(msgspec.Struct, frozen=True, array_like=True, tag="alive"):
    """The event loop of the process runs: sent each second that brings no Figures."""


class Listening(msgspec.Struct, frozen=True, array_like=True, tag="listening"):
    """The process has done so."""


class Emptied(msgspec.Struct, frozen=True, array_like=True, tag="emptied"):
    """The end of its requests there."""

    place: int


class Relay(msgspec.Struct, frozen=True, array_like=True, tag="relay"):
    """A connection, which comes with it, for one request that the owner is to answer."""


class Fatal(msgspec.Struct, frozen=True, array_like=True, tag="fatal"):
    """The process cannot serve."""

    message: str
    exit_code: int


ToGateway = (
    Setup
    | Engine
    | Role
    | Retire
    | Remove
    | Model
    | Gone
    | Resident
    | Answer
    | Reload
    | Stop
    | Listen
    | Collect
)
ToOwner = Alive | Listening | Emptied | Relay | Fatal | Figures | Want | Used
Message = ToGateway | ToOwner


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message, and how many descriptors are its own."""

    message: Message
    fds: int


class ControlChannel:
    """One end, in an event loop. Owns the socket. on_message gets each message with its descriptors, which
    are then its own; on_closed is called once, when the other end has gone."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Message, list[int]], None],
        on_closed: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock, self._on_message, self._on_closed = sock, on_message, on_closed
        self._reader: FrameReader[_Envelope] = FrameReader(_Envelope)
        self._fds: deque[int] = deque()
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)
        self._open = True

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """The descriptors stay the caller's. What the other end is too slow for is kept."""
        if not self._open:
            return
        self._unsent.append((encode(_Envelope(message, len(fds))), [os.dup(fd) for fd in fds]))
        if len(self._unsent) == 1:
            self._write()

    async def flush(self, timeout_s: float) -> None:
        """Return when all has been sent, or the time is over."""
        ends_s = self._loop.time() + timeout_s
        while self._open and self._unsent and self._loop.time() < ends_s:
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """Idempotent; on_closed is not called."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        for fd in (*self._fds, *(fd for _, fds in self._unsent for fd in fds)):
            os.close(fd)
        self._fds.clear()
        self._unsent.clear()
        self._sock.close()

    def _write(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                sent = self._sock.sendmsg([data], control)
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._write)
                return
            except OSError:
                break  # the reader hears of it
            for fd in fds:
                os.close(fd)
            self._unsent[0] = data[sent:], []
            if sent == len(data):
                self._unsent.popleft()
        self._loop.remove_writer(self._sock)

    def read_rest(self) -> None:
        """Last words of the other end, which has gone."""
        while self._open and self._read():
            pass

    def _read(self) -> bool:
        """False where nothing is there."""
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, READ_BYTES, MOST_FDS)
        except BlockingIOError:
            return False
        except OSError:
            data, fds = b"", []
        self._fds += fds
        try:
            envelopes = self._reader.feed(data) if data else []
        except FrameError:
            data, envelopes = b"", []
        for envelope in envelopes:
            own = [self._fds.popleft() for _ in range(envelope.fds)]
            self._on_message(envelope.message, own)
        if not data and self._open:
            self.close()
            self._on_closed()
        return True
