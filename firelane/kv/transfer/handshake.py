"""The greeting of two engines: both sides prove that they have the key, and pages are compared before any is
offered. Where one end asks for a cipher, both agree on its keys."""

from __future__ import annotations

import contextlib
import fcntl
import os
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from firelane.errors import PeerLostError
from firelane.kv.transfer.exported import SEALS, TAG_BYTES, ExportedPool
from firelane.kv.transfer.messages import PROTOCOL, Join, Joined, NixlMemory
from firelane.kv.transfer.nixl import NixlAgent, NixlTransport
from firelane.link.greeting import Challenge, facts_of
from firelane.link.line import Line, close_all
from firelane.link.proof import Secret, accept, admit, answer, greet, refuse

if TYPE_CHECKING:
    from firelane.kv.transfer.cipher import KeyExchange

MOST_FDS = 4


class Side(NamedTuple):
    """One engine, at either end. key: of the cluster; b"" between engines that one parent has connected.
    nixl: None where pages do not travel by it. ciphers: no pages but under a cipher; else there is one if the
    other end asks for it."""

    engine_id: str
    pool: ExportedPool
    key: bytes
    nixl: NixlTransport | None = None
    ciphers: bool = False

    @property
    def secret(self) -> Secret:
        return Secret(self.key, PROTOCOL)

    def agent(self) -> NixlAgent | None:
        return None if self.nixl is None else self.nixl.agent()


def welcome(line: Line, side: Side) -> NixlAgent | None:
    """The source's part; returns the agent that the reader has pages from, if it does. Raises PeerLostError,
    TimeoutError."""
    guest = admit(line, side.secret, side.ciphers)
    join = facts_of(guest.hello, Join)
    try:
        exchange = _admitted(join, side)
    except PeerLostError as error:
        raise refuse(line, str(error)) from error
    pool, maps = side.pool, bool(join.maps and line.carries_descriptors and side.pool.fds)
    agent = side.agent() if join.nixl and not maps else None
    joined = Joined(
        engine_id=side.engine_id,
        counts=pool.counts,
        maps=maps,
        nixl=None if agent is None else agent.memory,
        share=b"" if exchange is None else exchange.share,
    )
    accept(line, side.secret, guest, joined, tuple(pool.fds) if maps else ())
    if exchange is not None:
        line.encrypt(exchange.records("source", side.key, join.share, guest.nonces))
    return agent


def join(line: Line, side: Side, *, maps: bool, nixl: bool = False) -> tuple[Joined, list[int]]:
    """The reader's part; returns what the source has said, and its descriptors as in ExportedPool.fds, which
    the caller closes. maps, nixl: as in Join. Raises PeerLostError, TimeoutError."""
    challenge, pool = line.receive(Challenge), side.pool
    exchange = _exchange() if side.ciphers or facts_of(challenge, bool) else None
    said = Join(
        engine_id=side.engine_id,
        identity=pool.identity,
        layout_id=pool.layout_id,
        sizes=pool.sizes,
        maps=maps and line.carries_descriptors,
        nixl=nixl,
        share=b"" if exchange is None else exchange.share,
    )
    nonces = greet(line, side.secret, challenge, said)
    found, fds = answer(line, side.secret, nonces, MOST_FDS)
    try:
        joined = facts_of(found, Joined)
        _check_source(joined, fds, side)
        if exchange is not None:
            line.encrypt(exchange.records("reader", side.key, joined.share, nonces))
    except PeerLostError:
        close_all(fds)
        raise
    return joined, fds


def load_cipher() -> None:
    """Have it loaded, where it is installed, before the first connection asks for it."""
    with contextlib.suppress(ImportError):
        import_module("firelane.kv.transfer.cipher")


def _exchange() -> KeyExchange:
    """Raises PeerLostError where there is no cipher."""
    try:
        from firelane.kv.transfer.cipher import KeyExchange
    except ImportError as error:
        raise PeerLostError(
            "pages travel under a cipher, for which one end has no package: pip install "
            "'firelane[encryption]' there"
        ) from error
    return KeyExchange()


def _admitted(join: Join, side: Side) -> KeyExchange | None:
    """This end's part of the cipher that the reader asks for. Raises PeerLostError where it gets no pages."""
    reason = _refusal(join, side)
    if reason:
        raise PeerLostError(reason)
    return _exchange() if join.share else None


def _refusal(join: Join, side: Side) -> str:
    """The reason why the reader gets no pages; "" where it does."""
    pool = side.pool
    if side.ciphers and not join.share:
        return "pages travel under a cipher alone: the reader has to agree on its key"
    if join.identity != pool.identity:
        return f"another model, or another way to compute it: {join.identity} is not {pool.identity}"
    if (join.layout_id, join.sizes) != (pool.layout_id, pool.sizes):
        return (
            f"pages are laid out differently: {join.layout_id} ({_bytes(join.sizes)}) is not "
            f"{pool.layout_id} ({_bytes(pool.sizes)}); give both "
            "engines the same block size and dtype of the KV cache, and the same number of ranks"
        )
    return ""


def _bytes(sizes: list[int]) -> str:
    return ", ".join(f"{size} B" for size in sizes)


def _check_source(joined: Joined, fds: list[int], side: Side) -> None:
    if len(joined.counts) != len(side.pool.sizes):
        raise PeerLostError("it says that it has other kinds of pages than its layout")
    if joined.nixl is not None and not _is_memory_of(joined.nixl, len(joined.counts)):
        raise PeerLostError("its memory for NIXL is not that of its pages")
    if not joined.maps:
        return
    each = zip(joined.counts, side.pool.sizes, strict=True)
    sizes = [nbytes for count, size in each for nbytes in (count * size, count * TAG_BYTES)]
    if len(fds) != len(sizes) or not all(map(_can_be_mapped, fds, sizes)):
        raise PeerLostError("its memory is smaller than it says, or could be cut short")


def _is_memory_of(nixl: NixlMemory, kinds: int) -> bool:
    """Pages and tags of each kind, at addresses that there may be."""
    return len(nixl.addresses) == 2 * kinds and all(0 < address < 1 << 63 for address in nixl.addresses)


def _can_be_mapped(fd: int, nbytes: int) -> bool:
    """A file that shrinks would end whoever has mapped it."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return seals & SEALS == SEALS and os.fstat(fd).st_size >= nbytes
