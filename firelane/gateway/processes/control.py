"""Messages between the process that owns a server and its gateway processes, file descriptors included."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from firelane.errors import PeerLostError
from firelane.link.channel import Channel
from firelane.telemetry.metrics import Dump

MOST_FDS = 64
POLL_S = 0.005


class Setup(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="setup"):
    """A gateway process is to serve. index: its place, which a later one may take; number: its own, in its
    requests' ids. config: of the gateway, as JSON. created: Unix time of the server's start. With it come
    the shared counts and the sockets to listen on."""

    index: int
    number: int
    places: int
    config: bytes
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


class ServeModel(msgspec.Struct, frozen=True, array_like=True, tag="model"):
    """A model is served from now on, or in another way. config: as JSON."""

    config: bytes


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


class WantReply(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
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
    | ServeModel
    | Gone
    | Resident
    | WantReply
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
        self._channel: Channel[_Envelope] = Channel(sock, _Envelope, sys.maxsize, most_fds=MOST_FDS)
        self._on_message, self._on_closed = on_message, on_closed
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._channel, self._read)
        self._open = True

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """The descriptors stay the caller's. What the other end is too slow for is kept."""
        if self._open:
            with suppress(PeerLostError):  # the reader hears of it
                self._channel.send(_Envelope(message, len(fds)), fds)
            if self._channel.unsent_bytes:
                self._loop.add_writer(self._channel, self._write)

    async def flush(self, timeout_s: float) -> None:
        """Return when all has been sent, or the time is over."""
        ends_s = self._loop.time() + timeout_s
        while self._open and self._channel.unsent_bytes and self._loop.time() < ends_s:
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """Idempotent; on_closed is not called."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)
            self._channel.close()

    def _write(self) -> None:
        is_lost = False
        try:
            self._channel.push()
        except PeerLostError:
            is_lost = True  # the reader hears of it
        if is_lost or not self._channel.unsent_bytes:
            self._loop.remove_writer(self._channel)

    def read_rest(self) -> None:
        """Last words of the other end, which has gone."""
        for _ in range(2):  # the words, and the end behind them
            if self._open:
                self._read()

    def _read(self) -> None:
        try:
            envelopes = self._channel.receive()
        except PeerLostError:
            self.close()
            self._on_closed()
            return
        for envelope in envelopes:
            own = [self._channel.descriptors.popleft() for _ in range(envelope.fds)]
            self._on_message(envelope.message, own)
