"""The first messages of a connection: both sides prove that they have the key, to a nonce of the other one,
and pages are compared before any is offered."""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
from typing import NamedTuple

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

MOST_FDS = 4


class Side(NamedTuple):
    """One engine, at either end. key: of the cluster; b"" between engines that one parent has connected.
    nixl: None where pages do not travel by it."""

    engine_id: str
    pool: ExportedPool
    key: bytes
    nixl: NixlTransport | None = None

    def agent(self) -> NixlAgent | None:
        return None if self.nixl is None else self.nixl.agent()


def welcome(line: Line, side: Side) -> NixlAgent | None:
    """The source's part; returns the agent that the reader has pages from, if it does. Raises
    ConnectionLostError, LateError."""
    ours = secrets.token_bytes(NONCE_BYTES)
    line.send(Hello(VERSION, ours))
    join: Join = line.receive(Join)
    reason = _refusal(join, side, ours)
    if reason:
        line.send(Refused(reason))
        raise ConnectionLostError(reason)
    pool, maps = side.pool, bool(join.maps and line.carries_descriptors and side.pool.fds)
    agent = side.agent() if join.nixl and not maps else None
    joined = Joined(
        engine_id=side.engine_id,
        counts=pool.counts,
        maps=maps,
        nixl=None if agent is None else agent.memory,
        proof=b"",
    )
    said = proof(side.key, "source", ours, join.nonce, *_source_facts(joined))
    line.send(msgspec.structs.replace(joined, proof=said), pool.fds if maps else ())
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
    facts = _reader_facts(side.engine_id, pool.identity, pool.layout_id, pool.sizes)
    line.send(
        Join(
            nonce=ours,
            engine_id=side.engine_id,
            identity=pool.identity,
            layout_id=pool.layout_id,
            sizes=pool.sizes,
            maps=maps and line.carries_descriptors,
            nixl=nixl,
            proof=proof(side.key, "reader", hello.nonce, ours, *facts),
        )
    )
    joined, fds = line.receive(Joined, most_fds=MOST_FDS)
    try:
        _check_source(joined, fds, side, proof_of=(hello.nonce, ours))
    except ConnectionLostError:
        _close(fds)
        raise
    return joined, fds


def _reader_facts(engine_id: str, identity: str, layout_id: str, sizes: list[int]) -> tuple[bytes, ...]:
    return engine_id.encode(), identity.encode(), layout_id.encode(), str(sizes).encode()


def _source_facts(joined: Joined) -> tuple[bytes, ...]:
    facts = (joined.engine_id.encode(), str(joined.counts).encode(), str(joined.maps).encode())
    nixl = joined.nixl
    return facts if nixl is None else (*facts, nixl.metadata, str(nixl.addresses).encode())


def _refusal(join: Join, side: Side, nonce: bytes) -> str:
    """The reason why the reader gets no pages; "" where it does."""
    pool = side.pool
    facts = _reader_facts(join.engine_id, join.identity, join.layout_id, join.sizes)
    if not hmac.compare_digest(join.proof, proof(side.key, "reader", nonce, join.nonce, *facts)):
        return "the keys of the cluster differ: give all engines the same one"
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
