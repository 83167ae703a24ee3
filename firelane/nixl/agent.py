"""The agent: shows memories of its engine to other agents, and reads theirs, a session for each."""

from __future__ import annotations

import mmap
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from firelane.errors import MachineError, PeerLostError
from firelane.link.packets import pair, send
from firelane.nixl.library import Library
from firelane.nixl.messages import (
    Busy,
    Done,
    Open,
    Ping,
    Register,
    Registered,
    TransferFailed,
    receive,
)
from firelane.nixl.peers import Peers
from firelane.nixl.session import Session

BUSY_S, ATTENTIVE_S = 0.05, 10.0
"""Since something has happened: how long others are taken to read, and how long they may soon."""
SOON_S, OFTEN_S, SELDOM_S = 0.00005, 0.001, 0.1
"""Pauses between two looks: while somebody reads, after that for a while, and then. To look all the time
would take a core, which the engine needs."""
MOST_CLOSED = 16
"""Sessions whose transfers do not end, each with its staging memory: with more the agent ends, and they with
it."""


class Agent:
    """Runs in a process of its own, but for its second, which has a thread there, an agent of NIXL of its own
    and every other session: where a read is a copy by the processor, two run at a time. Owns all that it is
    given."""

    def __init__(
        self, sock: socket.socket, start: Callable[[str], Library] = Library, *, has_second: bool = True
    ) -> None:
        """start: of NIXL's agent, by its name."""
        self._sock, self._start = sock, start
        self._second = Second(start) if has_second else None
        self._is_seconds_turn = False
        self._library: Library | None = None
        self._peers: Peers | None = None
        self._shown: list[NDArray[np.uint8]] = []
        self._sessions: dict[int, Session] = {}
        self._closed: list[Session] = []
        """Their last transfers have not ended."""
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._moved_s = self._busy_s = float("-inf")
        """When something of this engine's has come, and when others began to read."""

    def run(self) -> None:
        """Until the engine hangs up, or too much of what was has to be kept."""
        while True:
            for fd, _ in self._poll.poll(self._pause_ms()):
                if fd in self._sessions:
                    self._serve(self._sessions[fd])
                elif fd != self._sock.fileno() or not self._obey():
                    return  # the engine has ended, or the second agent
            if self._library is not None:
                self._library.progress()
            for session in self._sessions.values():
                while session.progress():
                    self._moved_s = time.monotonic()
            self._closed = [session for session in self._closed if not session.has_ended()]
            if len(self._closed) > MOST_CLOSED or (self._peers is not None and self._peers.is_full):
                return  # the engine starts another one

    def close(self) -> None:
        """Hang up."""
        if self._second is not None:
            self._second.close()
        for session in self._sessions.values():
            session.close()
        self._sock.close()

    def _pause_ms(self) -> float:
        """Milliseconds of the next wait for messages; shorter pauses are slept here."""
        now_s = time.monotonic()
        is_reading = any(session.is_reading for session in self._sessions.values())
        if now_s < self._busy_s + BUSY_S or (is_reading and now_s < self._moved_s + ATTENTIVE_S):
            time.sleep(SOON_S)
            return 0
        is_soon = is_reading or now_s < max(self._moved_s, self._busy_s) + ATTENTIVE_S
        return (OFTEN_S if is_soon else SELDOM_S) * 1e3

    def _obey(self) -> bool:
        """One message of the engine; False at its end."""
        try:
            message, fds = receive(self._sock)
        except PeerLostError:
            return False
        if isinstance(message, Register):
            self._answer(message, fds)
        elif isinstance(message, Open) and len(fds) == 2 and self._library is not None:
            self._open(message, fds)
        elif isinstance(message, Ping):
            send(self._sock, Done())
        elif isinstance(message, Busy):
            self._busy_s = time.monotonic()
        else:
            raise MachineError(f"{type(message).__name__} is nothing for an agent")
        return True

    def _answer(self, message: Register, fds: list[int]) -> None:
        try:
            send(self._sock, self._register(message, fds))
        except (MachineError, PeerLostError) as error:
            send(self._sock, TransferFailed(str(error)))

    def _register(self, message: Register, fds: list[int]) -> Registered:
        """Mapped to be read: nothing that comes over the network can write there."""
        if self._second is not None:
            self._second.register()
            self._poll.register(self._second.fileno(), select.POLLIN)
        self._library = self._start(f"firelane-{secrets.token_hex(16)}")
        self._peers = Peers(self._library)
        for fd, nbytes in zip(fds, message.sizes, strict=True):
            self._shown.append(np.frombuffer(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ), np.uint8))
            os.close(fd)
        if self._shown:
            self._library.register([(memory.ctypes.data, memory.nbytes) for memory in self._shown])
        return Registered(self._library.metadata, [memory.ctypes.data for memory in self._shown])

    def _open(self, message: Open, fds: list[int]) -> None:
        self._is_seconds_turn = not self._is_seconds_turn
        if self._second is not None and self._is_seconds_turn:
            self._second.open(message, fds)
            return
        assert self._library is not None
        assert self._peers is not None
        sock = socket.socket(fileno=fds[0])
        session = Session(self._library, self._peers, sock, fds[1], message.nbytes)
        self._sessions[fds[0]] = session
        self._poll.register(fds[0], select.POLLIN)

    def _serve(self, session: Session) -> None:
        self._moved_s = time.monotonic()
        if session.obey():
            return
        fd = session.fileno()
        self._poll.unregister(fd)
        del self._sessions[fd]
        session.close()
        self._closed.append(session)


class Second:
    """The first agent's end of the second one: it says what the engine would."""

    def __init__(self, start: Callable[[str], Library]) -> None:
        self._sock, self._theirs = pair()
        self._start = start
        self._thread = threading.Thread(target=self._run, name="second", daemon=True)

    def register(self) -> None:
        """Have it ready. Raises MachineError, PeerLostError."""
        self._thread.start()
        send(self._sock, Register([]))
        answer, _ = receive(self._sock)
        if not isinstance(answer, Registered):
            raise MachineError(getattr(answer, "reason", "the second agent errs"))

    def fileno(self) -> int:
        """A descriptor that can be read once the process has ended."""
        return self._sock.fileno()

    def open(self, message: Open, fds: list[int]) -> None:
        """Raises PeerLostError where it has ended."""
        try:
            send(self._sock, message, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        self._sock.close()
        if self._thread.ident is None:
            self._theirs.close()
        else:
            self._thread.join()

    def _run(self) -> None:
        agent = Agent(self._theirs, self._start, has_second=False)
        try:
            agent.run()
        finally:
            agent.close()
