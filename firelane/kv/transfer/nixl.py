"""Pages that travel by NIXL: the engine's end of its agent (firelane.nixl).

An agent maps the engine's pages to be read, and writes to staging memory alone, from which the engine copies
what fits its checksum. So whatever NIXL, a driver or a peer does, and however late, no page changes by it.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from firelane.errors import PeerLostError
from firelane.kv.transfer.exported import TAG_BYTES, ExportedPool
from firelane.kv.transfer.messages import NixlMemory
from firelane.link import packets
from firelane.nixl import messages
from firelane.nixl.messages import Attach, Busy, Done, Items, Open, Ping, ReadItems, Register
from firelane.nixl.processes import HelperAgents

START_S, PING_S, RESTART_S = 60.0, 1.0, 5.0
"""For an agent to be there, with NIXL's libraries; for it to answer; and from one start to the next."""
WAIT_S = 2.0
"""Seconds that a connection waits for an agent that starts again: after that its pages travel over the
connection."""
SESSIONS = 2
"""With one peer: the agent reads for one of them while pages of another one are copied, or for both."""
STAGING_BYTES, MOST_PAGES = 4 << 20, 32
"""Bytes of staging memory and pages of one session, at most."""
SEALS = 0x1 | 0x2 | 0x4
"""F_SEAL_SEAL, SHRINK and GROW: who has the descriptor cannot cut it short."""
log = logging.getLogger(__name__)


class NixlSession:
    """Reads from one peer, by one thread. Owns its socket and its staging memory, in which tags lie behind
    pages."""

    def __init__(self, sock: socket.socket, staging: NDArray[np.uint8], tags_at: int) -> None:
        """tags_at: offset of the tags."""
        self._sock, self._staging, self.tags_at = sock, staging, tags_at

    def attach(self, memory: NixlMemory, deadline_s: float) -> None:
        """Raises PeerLostError, TimeoutError."""
        self._send(Attach(memory.metadata, memory.addresses))
        self.wait(deadline_s)

    def ask(self, steps: list[Items]) -> None:
        """Have this read. Raises PeerLostError."""
        self._send(ReadItems(steps))

    def wait(self, deadline_s: float) -> None:
        """Until the first of what was asked for is there. Raises PeerLostError, TimeoutError."""
        self._sock.settimeout(max(deadline_s - time.monotonic(), 1e-6))
        try:
            answer, _ = messages.receive(self._sock)
        except PeerLostError as error:
            raise PeerLostError(f"the NIXL agent of this engine has ended, or errs: {error}") from error
        if not isinstance(answer, Done):
            raise PeerLostError(getattr(answer, "reason", "the NIXL agent of this engine errs"))

    def staged(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        return self._staging[offset : offset + nbytes]

    def hang_up(self) -> None:
        """From any thread."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Idempotent. What is still on its way goes nowhere."""
        self._sock.close()

    def _send(self, message: messages.Message) -> None:
        try:
            packets.send(self._sock, message)
        except PeerLostError as error:
            raise PeerLostError("the NIXL agent of this engine has ended") from error


class NixlAgent:
    """One life of the agent, used by several threads. Owns its first socket."""

    def __init__(self, sock: socket.socket, pool: ExportedPool) -> None:
        """Raises PeerLostError."""
        self._sock, self._pool = sock, pool
        self._asking = threading.Lock()
        sizes = [
            count * nbytes
            for count, size in zip(pool.counts, pool.sizes, strict=True)
            for nbytes in (size, TAG_BYTES)
        ]
        answer = self._ask(Register(sizes), START_S, pool.fds)
        if not isinstance(answer, messages.Registered):
            raise PeerLostError(getattr(answer, "reason", "the agent errs"))
        self.memory = NixlMemory(answer.metadata, answer.addresses)

    def answers(self) -> bool:
        """Whether it lives, and is not stopped."""
        try:
            return isinstance(self._ask(Ping(), PING_S), Done)
        except PeerLostError:
            return False

    def be_ready(self) -> None:
        """Others read from now on."""
        with suppress(PeerLostError, TimeoutError):
            packets.send(self._sock, Busy())

    def sessions(self, peer: NixlMemory, deadline_s: float) -> list[NixlSession]:
        """The ones with one peer. Raises PeerLostError."""
        made: list[NixlSession] = []
        try:
            for _ in range(SESSIONS):
                made.append(self._session())
                made[-1].attach(peer, deadline_s)
        except (PeerLostError, TimeoutError) as error:
            for one in made:
                one.close()
            if isinstance(error, PeerLostError):
                raise
            self._give_up()
            raise PeerLostError("the agent does not answer") from error
        return made

    def _session(self) -> NixlSession:
        tags_at = max(STAGING_BYTES, *self._pool.sizes)
        nbytes = tags_at + MOST_PAGES * TAG_BYTES
        ours, theirs = packets.pair()
        fd, staging = _staging(nbytes)
        try:
            packets.send(self._sock, Open(nbytes), (theirs.fileno(), fd))
        except (PeerLostError, TimeoutError):
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(fd)
        return NixlSession(ours, staging, tags_at)

    def close(self) -> None:
        """Idempotent."""
        self._sock.close()

    def _give_up(self) -> None:
        """Whoever asks it next, starts another one."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _ask(self, message: messages.Message, limit_s: float, fds: Sequence[int] = ()) -> object:
        with self._asking:
            try:
                self._sock.settimeout(limit_s)
                packets.send(self._sock, message, fds)
                return messages.receive(self._sock)[0]
            except (PeerLostError, OSError) as error:
                raise PeerLostError(f"the agent does not answer ({error})") from error


class NixlTransport:
    """The agent of an engine: started in a thread, and again when it is gone. Owns the processes."""

    def __init__(self, processes: HelperAgents, pool: ExportedPool) -> None:
        self._processes, self._pool = processes, pool
        self._agent: NixlAgent | None = None
        self._guard = threading.Lock()
        """The guard of all of this."""
        self._starting: threading.Thread | None = None
        self._started_s = float("-inf")
        self._is_closed = False

    def agent(self, wait_s: float | None = None) -> NixlAgent | None:
        """One that lives; None: pages have to travel in another way. wait_s: WAIT_S by default."""
        with self._guard:
            if self._agent is not None and self._agent.answers():
                return self._agent
            if self._starting is None and not self._start_again():
                return None
            starting = self._starting
        if starting is not None:
            starting.join(WAIT_S if wait_s is None else wait_s)
        with self._guard:
            return self._agent

    def close(self) -> None:
        """Idempotent."""
        with self._guard:
            self._is_closed = True
            starting = self._starting
        self._processes.close()
        if starting is not None:
            starting.join()
        if self._agent is not None:
            self._agent.close()

    def _start_again(self) -> bool:
        """Have another one started, unless that was tried just now, or pages are private."""
        now_s = time.monotonic()
        if self._is_closed or now_s < self._started_s + RESTART_S or not self._pool.fds:
            return False
        if self._agent is not None:
            log.warning("nixl_agent_lost: it has ended, or does not answer, and is started again")
            self._agent.close()
            self._agent = None
        self._started_s = now_s
        self._starting = threading.Thread(target=self._start, name="nixl-agent", daemon=True)
        self._starting.start()
        return True

    def _start(self) -> None:
        agent = None
        try:
            agent = self._started()
        except (PeerLostError, OSError) as error:
            log.warning("nixl_agent_failed error=%r: pages travel over TCP", str(error))
        with self._guard:
            self._agent, self._starting = agent, None

    def _started(self) -> NixlAgent:
        sock = self._processes.start()
        try:
            return NixlAgent(sock, self._pool)
        except PeerLostError:
            sock.close()
            raise


def _staging(nbytes: int) -> tuple[int, NDArray[np.uint8]]:
    """A file in memory, and where it is mapped. Raises OSError."""
    fd = os.memfd_create("firelane-nixl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        return fd, np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
    except OSError:
        os.close(fd)
        raise
