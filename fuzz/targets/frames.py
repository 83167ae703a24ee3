"""Frames of every link: a letter for the link, then its bytes. They are read in the same way however they are
cut, what was read is written and read again as it was, and all else is refused by the link's own error."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

from firelane.backends.cpu.ranks.hosts import attach
from firelane.errors import PeerLostError
from firelane.gateway.processes import control
from firelane.kv.transfer import messages as pages
from firelane.link.framing import FrameReader, encode
from firelane.link.greeting import Refused, Welcome, take_greeting
from firelane.link.line import Line
from firelane.link.packets import pair
from firelane.native import compile_requests
from firelane.nixl import messages as nixl
from firelane.wire import peers
from firelane.wire.frames import FromEngine, ToEngine
from fuzz.pieces import pieces
from fuzz.target import Target

MOST_FRAME_BYTES = 1 << 12
Link = Callable[[bytes], None]


class Stream:
    """The reading end of a socket on which these bytes come, and then nothing."""

    family = socket.AF_INET

    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv_into(self, view: memoryview) -> int:
        count = min(len(view), len(self._data), 5)
        view[:count] = self._data[:count]
        self._data = self._data[count:]
        return count

    def gettimeout(self) -> None:
        pass

    def settimeout(self, timeout_s: float | None) -> None:
        del timeout_s

    def setsockopt(self, *_: int) -> None:
        pass

    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.1", 1


def framed(kind: Any) -> Link:
    """A link of frames of this union type."""

    def read(data: bytes) -> None:
        whole = FrameReader(kind, MOST_FRAME_BYTES).feed(data)
        reader = FrameReader[Any](kind, MOST_FRAME_BYTES)
        cut = [frame for part in pieces(data, 3) for frame in reader.feed(part)]
        again = FrameReader(kind, 4 * MOST_FRAME_BYTES).feed(b"".join(map(encode, whole)))
        assert repr(cut) == repr(again) == repr(whole)  # one that is not a number differs from itself

    return read


def hello(data: bytes) -> None:
    taken = take_greeting(data)
    if taken is not None:
        written = encode(taken[0])
        assert take_greeting(written) == (taken[0], len(written))


def page_line(data: bytes) -> None:
    line = pages.PageLine(cast(Any, Stream(data)))
    while True:
        line.receive(pages.Find)


def rank_host(data: bytes) -> None:
    host = Line(cast(Any, Stream(data)))
    for kind in (attach.HostFacts, Welcome | Refused, attach.Start, attach.Loaded | attach.Ended):
        host.receive_with(kind)


def datagrams(receive: Callable[[socket.socket], Any], most_bytes: int) -> Link:
    """A link over a socket that keeps messages apart."""

    def read(data: bytes) -> None:
        ours, theirs = pair()
        with ours, theirs:
            theirs.send(data[:most_bytes] or b"\0")
            receive(ours)

    return read


def compiler(data: bytes) -> None:
    msgspec.json.decode(data, type=compile_requests.CompileRequest)


LINKS: tuple[Link, ...] = (
    framed(ToEngine),
    framed(FromEngine),
    framed(control._Envelope),
    hello,
    page_line,
    rank_host,
    datagrams(peers.receive, peers.MOST_BYTES),
    datagrams(nixl.receive, nixl.MOST_BYTES),
)
REFUSALS = (PeerLostError, msgspec.DecodeError)


def run(data: bytes) -> None:
    LINKS[(data[0] if data else 0) % len(LINKS)](data[1:])


TARGET = Target(
    run=run,
    refusals=REFUSALS,
    words=tuple(
        bytes([0xA0 | len(tag)]) + tag
        for tag in (
            *(b"submit", b"abort", b"drain", b"sleep", b"wake", b"forget", b"tell_pages", b"step", b"ready"),
            *(
                b"cache",
                b"pages",
                b"stored",
                b"removed",
                b"cleared",
                b"beat",
                b"loading",
                b"progress",
                b"failed",
            ),
            *(b"hello", b"join", b"joined", b"refused", b"find", b"found", b"welcome", b"setup"),
            *(
                b"engine",
                b"role",
                b"retire",
                b"model",
                b"answer",
                b"collect",
                b"figures",
                b"alive",
                b"connection",
            ),
            *(
                b"register",
                b"registered",
                b"open",
                b"attach",
                b"read",
                b"done",
                b"json_schema",
                b"stop",
                b"length",
            ),
        )
    ),
)
