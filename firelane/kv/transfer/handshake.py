"""The first messages of a connection: both sides prove that they have the key, to a nonce of the other one,
and pages are compared before any is offered. Where one end asks for a cipher, both agree on its keys."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from firelane.kv.transfer.exported import SEALS, TAG_BYTES, ExportedPool
from firelane.kv.transfer.messages import (
    NONCE_BYTES,
    VERSION,
    ConnectionLostError,
    Hello,
    Join,
    Joined,
    Line,
    NixlMemory,
    Refused,
    proof,
)
from firelane.kv.transfer.nixl import NixlAgent, NixlTransport

if TYPE_CHECKING:
    from firelane.kv.transfer.cipher import Exchange

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

    def agent(self) -> NixlAgent | None:
        return None if self.nixl is None else self.nixl.agent()


def welcome(line: Line, side: Side) -> NixlAgent | None:
    """The source's part; returns the agent that the reader has pages from, if it does. Raises
    ConnectionLostError, LateError."""
    ours = secrets.token_bytes(NONCE_BYTES)
    line.send(Hello(VERSION, ours, side.ciphers))
    join: Join = line.receive(Join)
    try:
        exchange = _admitted(join, side, ours)
    except ConnectionLostError as error:
        line.send(Refused(str(error)))
        raise
    pool, maps = side.pool, bool(join.maps and line.carries_descriptors and side.pool.fds)
    agent = side.agent() if join.nixl and not maps else None
    joined = Joined(
        engine_id=side.engine_id,
        counts=pool.counts,
        maps=maps,
        nixl=None if agent is None else agent.memory,
        proof=b"",
        share=b"" if exchange is None else exchange.share,
    )
    said = proof(side.key, "source", ours, join.nonce, *_source_facts(joined))
    line.send(msgspec.structs.replace(joined, proof=said), pool.fds if maps else ())
    if exchange is not None:
        line.encrypt(exchange.records("source", side.key, join.share, ours + join.nonce))
    return agent


def join(line: Line, side: Side, *, maps: bool, nixl: bool = False) -> tuple[Joined, list[int]]:
    """The reader's part; returns what the source has said, and its descriptors as in ExportedPool.fds, which
    the caller closes. maps, nixl: as in Join. Raises ConnectionLostError, LateError."""
    hello: Hello = line.receive(Hello)
    if hello.version != VERSION:
        raise ConnectionLostError(
            f"it speaks version {hello.version} of page transfer, this engine {VERSION}: install the same "
            "version of Firelane for both"
        )
    ours, pool = secrets.token_bytes(NONCE_BYTES), side.pool
    exchange = _exchange() if hello.ciphers or side.ciphers else None
    said = Join(
        nonce=ours,
        engine_id=side.engine_id,
        identity=pool.identity,
        layout_id=pool.layout_id,
        sizes=pool.sizes,
        maps=maps and line.carries_descriptors,
        nixl=nixl,
        proof=b"",
        share=b"" if exchange is None else exchange.share,
    )
    proven = proof(side.key, "reader", hello.nonce, ours, *_reader_facts(said))
    line.send(msgspec.structs.replace(said, proof=proven))
    joined, fds = line.receive(Joined, most_fds=MOST_FDS)
    try:
        _check_source(joined, fds, side, proof_of=(hello.nonce, ours))
        if exchange is not None:
            line.encrypt(exchange.records("reader", side.key, joined.share, hello.nonce + ours))
    except ConnectionLostError:
        _close(fds)
        raise
    return joined, fds


def load_cipher() -> None:
    """Have it loaded, where it is installed, before the first connection asks for it."""
    with contextlib.suppress(ImportError):
        import_module("firelane.kv.transfer.cipher")


def _exchange() -> Exchange:
    """Raises ConnectionLostError where there is no cipher."""
    try:
        from firelane.kv.transfer.cipher import Exchange
    except ImportError as error:
        raise ConnectionLostError(
            "pages travel under a cipher, for which one end has no package: pip install "
            "'firelane[encryption]' there"
        ) from error
    return Exchange()


def _reader_facts(join: Join) -> tuple[bytes, ...]:
    texts = join.engine_id, join.identity, join.layout_id, str(join.sizes)
    return *(text.encode() for text in texts), join.share


def _source_facts(joined: Joined) -> tuple[bytes, ...]:
    facts = (joined.engine_id.encode(), str(joined.counts).encode(), str(joined.maps).encode(), joined.share)
    nixl = joined.nixl
    return facts if nixl is None else (*facts, nixl.metadata, str(nixl.addresses).encode())


def _admitted(join: Join, side: Side, nonce: bytes) -> Exchange | None:
    """This end's part of the cipher that the reader asks for. Raises ConnectionLostError where it gets no
    pages."""
    reason = _refusal(join, side, nonce)
    if reason:
        raise ConnectionLostError(reason)
    return _exchange() if join.share else None


def _refusal(join: Join, side: Side, nonce: bytes) -> str:
    """The reason why the reader gets no pages; "" where it does."""
    pool = side.pool
    said = proof(side.key, "reader", nonce, join.nonce, *_reader_facts(join))
    if not hmac.compare_digest(join.proof, said):
        return "the keys of the cluster differ: give all engines the same one"
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


def _check_source(joined: Joined, fds: list[int], side: Side, proof_of: tuple[bytes, bytes]) -> None:
    facts = _source_facts(joined)
    if not hmac.compare_digest(joined.proof, proof(side.key, "source", *proof_of, *facts)):
        raise ConnectionLostError("the keys of the cluster differ: give all engines the same one")
    if len(joined.counts) != len(side.pool.sizes):
        raise ConnectionLostError("it says that it has other kinds of pages than its layout")
    if joined.nixl is not None and not _is_memory_of(joined.nixl, len(joined.counts)):
        raise ConnectionLostError("its memory for NIXL is not that of its pages")
    if not joined.maps:
        return
    each = zip(joined.counts, side.pool.sizes, strict=True)
    sizes = [nbytes for count, size in each for nbytes in (count * size, count * TAG_BYTES)]
    if len(fds) != len(sizes) or not all(map(_can_be_mapped, fds, sizes)):
        raise ConnectionLostError("its memory is smaller than it says, or could be cut short")


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


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
