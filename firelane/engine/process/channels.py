"""All connections of one engine as one channel: that of its owner, and those of further gateways.

Further ones come through the acceptor, a socket over which the owner passes them. Each has a number, and its
requests' ids carry it (`wire.numbers`): so no frame is rewritten, and a frame of a step is only cut. The
owner alone may drain the engine, put it to standby and change its adapters, and the engine ends with the
owner's connection; with another one end its requests alone. Each may have a tenant forgotten: an engine's
host owns it and knows of no tenants.
"""

from __future__ import annotations

import array
import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from firelane.errors import FrameError, PeerLostError
from firelane.link.channel import Channel
from firelane.wire.adapters import AdaptersServed, LoadAdapter, UnloadAdapter
from firelane.wire.cache_events import CacheEvents, PageChanges
from firelane.wire.frames import (
    Abort,
    Asleep,
    Awake,
    Drain,
    Embedding,
    EngineStats,
    Finished,
    ForgetTenant,
    Forgotten,
    FromEngine,
    Loading,
    Progress,
    Ready,
    Rejected,
    Sleep,
    Started,
    StepFrame,
    Submit,
    TellPages,
    ToEngine,
    TokenLogprobs,
    Wake,
)
from firelane.wire.numbers import NUMBER_BYTES, SHIFT, number_of

log = logging.getLogger(__name__)
STATS_S = 0.05
"""Between two reports of the engine's load to a gateway that has no tokens in its steps."""
MOST_UNSENT_BYTES = 16 << 20
"""Bytes that wait for a gateway that does not read: it must not hold up the steps of the others."""
GREETINGS: tuple[type[FromEngine], ...] = (Loading, Progress, Ready, Asleep)
"""Frames of which a new connection gets the last one, in this order."""


class Channels:
    """Owns all connections, and the acceptor. Any thread may send; one thread receives."""

    def __init__(self, first: Channel[ToEngine], acceptor: socket.socket) -> None:
        acceptor.setblocking(False)
        self._first, self._acceptor = first, acceptor
        self._others: dict[int, Channel[ToEngine]] = {}
        self._told: dict[type[FromEngine], FromEngine] = {}
        self._live: dict[int, set[int]] = {}
        self._followers: set[int] = set()  # gateways that are told of pages
        self._behind: set[int] = set()  # gateways that have not got the last figures
        self._last_step: StepFrame | None = None
        self._told_all_s = 0.0
        self._lost: list[int] = []
        self._is_receiving = False
        self._lock = threading.RLock()  # guards all of these
        self._poller = select.poll()
        self._poller.register(acceptor.fileno(), select.POLLIN)
        self._watched: dict[int, int] = {}

    def send(self, frame: FromEngine) -> None:
        """Raises PeerLostError when the owner has gone."""
        with self._lock:
            if isinstance(frame, StepFrame):
                self._send_step(frame)
            elif isinstance(frame, CacheEvents):
                self._first.send(frame)
            elif isinstance(frame, PageChanges):
                for number in list(self._followers):
                    self._send_to(number, frame)
            elif isinstance(frame, Rejected):
                self._ended(frame.id)
                self._send_to(number_of(frame.id), frame)
            elif isinstance(frame, Forgotten):
                self._send_to(number_of(frame.id), frame)
            else:
                self._broadcast(frame)

    def receive(self, timeout_s: float | None = 0.0) -> list[ToEngine]:
        """Frames of all connections, as Channel.receive gives those of one."""
        self._is_receiving = True
        frames = self._read(0.0)
        if not frames and timeout_s != 0.0:
            with self._lock:
                self._tell_figures()
            frames = self._read(timeout_s)
        return frames

    def flush(self, timeout_s: float) -> None:
        with self._lock:
            self._tell_figures()
            for number in list(self._others):
                self._try(number, lambda channel: channel.flush(timeout_s))
        self._first.flush(timeout_s)

    def close(self) -> None:
        for channel in (self._first, *self._others.values()):
            channel.close()
        self._acceptor.close()

    # ---- frames out

    def _send_to(self, number: int, frame: FromEngine) -> None:
        if number == 0:
            self._first.send(frame)
        else:
            self._try(number, lambda channel: channel.send(frame))

    def _broadcast(self, frame: FromEngine) -> None:
        """Before anything is received, while the engine loads, gateways that come hear of it here."""
        if not self._is_receiving:
            self._admit()
        kind = type(frame)
        if kind is Awake:
            self._told.pop(Asleep, None)
        elif kind in GREETINGS:
            self._told[kind] = frame
        elif isinstance(frame, AdaptersServed) and isinstance(ready := self._told.get(Ready), Ready):
            self._told[Ready] = msgspec.structs.replace(ready, adapters=frame.adapters)
        for number in list(self._others):
            self._send_to(number, frame)
        self._first.send(frame)

    def _send_step(self, frame: StepFrame) -> None:
        self._last_step = frame
        self._behind = {0, *self._others}
        for number, part in split_step(frame).items():
            for finished in part.finished:
                self._ended(finished.id)
            self._behind.discard(number)
            self._send_to(number, part)
        if time.monotonic() - self._told_all_s >= STATS_S:
            self._tell_figures()

    def _tell_figures(self) -> None:
        """The engine's load, to all who have not got it with tokens of their own."""
        step, self._told_all_s = self._last_step, time.monotonic()
        behind, self._behind = self._behind, set()
        if step is not None:
            for number in behind:
                self._send_to(number, StepFrame(step.step, [], [], [], [], [], step.stats))

    def _ended(self, request_id: int) -> None:
        self._live.get(number_of(request_id), set[int]()).discard(request_id)

    # ---- frames in

    def _read(self, timeout_s: float | None) -> list[ToEngine]:
        ready = self._poll(timeout_s)
        frames: list[ToEngine] = []
        with self._lock:
            if self._acceptor.fileno() in ready:
                self._admit()
            for number, channel in list(self._others.items()):
                if channel.unsent_bytes:
                    self._try(number, Channel.push)
                if number in self._others and channel.fileno() in ready:
                    frames += self._of_other(number, channel)
            if self._first.unsent_bytes:
                self._first.push()
            lost, self._lost = self._lost, []
        if lost:
            frames.append(Abort(lost))
        own = self._first.receive(0.0)
        if any(isinstance(frame, TellPages) for frame in own):
            self._followers.add(0)
        return own + frames

    def _poll(self, timeout_s: float | None) -> set[int]:
        """Sockets that can be used."""
        with self._lock:
            for channel in (self._first, *self._others.values()):
                wanted = select.POLLIN | (select.POLLOUT if channel.unsent_bytes else 0)
                if self._watched.get(channel.fileno()) != wanted:
                    self._watched[channel.fileno()] = wanted
                    self._poller.register(channel.fileno(), wanted)
        return {fd for fd, _ in self._poller.poll(None if timeout_s is None else timeout_s * 1000)}

    def _of_other(self, number: int, channel: Channel[ToEngine]) -> list[ToEngine]:
        try:
            found = channel.receive(0.0)
            own = [frame for frame in found if self._is_allowed(number, frame)]
        except (PeerLostError, FrameError) as error:
            self._drop(number, str(error))
            return []
        for frame in own:
            if isinstance(frame, Submit):
                self._live[number].update(one.id for one in frame.requests if not one.prefetch)
        return own

    def _is_allowed(self, number: int, frame: ToEngine) -> bool:
        """Raises FrameError where the ids are another gateway's."""
        if isinstance(frame, Drain | Sleep | Wake | LoadAdapter | UnloadAdapter):
            return False
        if isinstance(frame, TellPages):
            self._followers.add(number)
            return True
        if isinstance(frame, ForgetTenant):
            ids = [frame.id]
        else:
            ids = frame.ids if isinstance(frame, Abort) else [request.id for request in frame.requests]
        if any(number_of(one) != number for one in ids):
            raise FrameError(f"gateway {number} speaks of requests that are not its own")
        return True

    # ---- connections

    def _admit(self) -> None:
        """Take what lies in the acceptor."""
        space = socket.CMSG_SPACE(array.array("i").itemsize)
        while True:
            try:
                data, control, _, _ = self._acceptor.recvmsg(NUMBER_BYTES, space)
            except BlockingIOError:
                return
            except OSError:
                data, control = b"", []
            if not data:
                self._close_acceptor()
                return
            for _, _, passed in control:
                (fd,) = array.array("i", passed[: array.array("i").itemsize])
                self._add(int.from_bytes(data, "little"), socket.socket(fileno=fd))

    def _close_acceptor(self) -> None:
        """The owner is about to end."""
        with contextlib.suppress(KeyError):
            self._poller.unregister(self._acceptor.fileno())

    def _add(self, number: int, sock: socket.socket) -> None:
        channel: Channel[ToEngine] = Channel(sock, ToEngine, max_unsent_bytes=2 * MOST_UNSENT_BYTES)
        self._others[number], self._live[number] = channel, set()
        for kind in GREETINGS:
            if kind in self._told:
                self._send_to(number, self._told[kind])
        if self._last_step is not None:
            self._behind.add(number)

    def _try(self, number: int, act: Callable[[Channel[ToEngine]], None]) -> None:
        """Its end is no error of the engine's."""
        channel = self._others.get(number)
        if channel is None:
            return
        try:
            act(channel)
        except PeerLostError as error:
            self._drop(number, str(error))
            return
        if channel.unsent_bytes > MOST_UNSENT_BYTES:
            self._drop(number, "it does not read what the engine sends")

    def _drop(self, number: int, reason: str) -> None:
        channel = self._others.pop(number)
        if self._watched.pop(channel.fileno(), None) is not None:
            self._poller.unregister(channel.fileno())
        channel.close()
        live = self._live.pop(number)
        self._lost += live
        self._behind.discard(number)
        self._followers.discard(number)
        log.info("gateway_gone number=%d requests=%d reason=%r", number, len(live), reason)


FrameChannel = Channels | Channel[ToEngine]
"""Frames in, frames out."""


EntryT = TypeVar("EntryT", Started, Finished, TokenLogprobs, Embedding)


def split_step(frame: StepFrame) -> dict[int, StepFrame]:
    """Parts by the gateway's number. All of them carry the whole engine's figures."""
    numbers = {one >> SHIFT for one in frame.ids}
    for entries in (frame.started, frame.finished, frame.logprobs, frame.embeddings):
        numbers.update(number_of(entry.id) for entry in entries)
    if len(numbers) < 2:
        return dict.fromkeys(numbers, frame)
    parts = {number: _empty(frame.step, frame.stats) for number in numbers}
    _share_tokens(frame, parts)
    for number, part in parts.items():
        part.started.extend(_of(number, frame.started))
        part.finished.extend(_of(number, frame.finished))
        part.logprobs.extend(_of(number, frame.logprobs))
        part.embeddings.extend(_of(number, frame.embeddings))
    return parts


def _share_tokens(frame: StepFrame, parts: dict[int, StepFrame]) -> None:
    if not frame.counts:
        for request_id, token in zip(frame.ids, frame.tokens, strict=True):
            part = parts[request_id >> SHIFT]
            part.ids.append(request_id)
            part.tokens.append(token)
        return
    begin = 0
    for request_id, count in zip(frame.ids, frame.counts, strict=True):
        part = parts[request_id >> SHIFT]
        part.ids.append(request_id)
        part.counts.append(count)
        part.tokens.extend(frame.tokens[begin : begin + count])
        begin += count


def _of(number: int, entries: Iterable[EntryT]) -> list[EntryT]:
    return [entry for entry in entries if number_of(entry.id) == number]


def _empty(step: int, stats: EngineStats) -> StepFrame:
    return StepFrame(step, [], [], [], [], [], stats, [], [])
