"""RankProcess: the process of one of several ranks, as the engine's own process sees it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from firelane import env
from firelane.backends.rank_words import FAILED, HELLO, LOADED, READY, send_task
from firelane.errors import MachineError

HELLO_S = 60.0
"""Until a rank that was started has to be there."""
END_S = 5.0
"""Until a rank that was told to end is killed."""
REAPED_S = 30.0
"""Until the system has ended a process whose socket it has closed: a busy one takes its time."""


class RankEndedError(MachineError):
    """A rank that has ended while others may be waiting for it."""


def _compiler() -> tuple[int, ...]:
    """The socket of the helper that compiles for an engine and its ranks."""
    fd = env.read().compiler_fd
    return () if fd is None else (fd,)


class RankProcess:
    """Process of rank `rank`, which runs `module` with the descriptor of its socket as its argument; `task`
    is what send() tells it. fds: that it inherits."""

    def __init__(self, module: str, rank: int, task: object, fds: Sequence[int]) -> None:
        self._rank, self._task = rank, task
        self._is_ending = self._is_loaded = self._is_ready = False
        self._sock, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", module, str(theirs.fileno())]
            passed = (theirs.fileno(), *fds, *_compiler())
            self._process = subprocess.Popen(command, pass_fds=passed, env=env.for_child())

    def send(self) -> None:
        """Raises MachineError where nobody reads it."""
        self._sock.settimeout(HELLO_S)
        try:
            send_task(self._sock, self._task)
        except OSError as error:
            raise MachineError(f"{self.name} did not take its task: {error}") from error

    @property
    def name(self) -> str:
        return f"rank {self._rank} of the model"

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_loaded(self) -> None:
        """Raises MachineError where it has ended, or is not there after HELLO_S."""
        try:
            if self._sock.recv(1) != HELLO:
                raise MachineError(f"{self.name} {self.ending()} before it began to load")
        except TimeoutError as error:
            raise MachineError(
                f"{self.name} did not appear within {HELLO_S:.0f} s: the machine may be "
                "overloaded, or out of memory"
            ) from error
        self._sock.settimeout(None)
        self._expect(LOADED)
        self._is_loaded = True

    def check(self) -> None:
        """Raises RankEndedError where it has said that it is loaded, and has ended before await_ready()."""
        if not self._is_loaded or self._process.poll() is None:
            return
        try:
            self._expect(READY)
        except MachineError as error:
            raise RankEndedError(str(error)) from error
        raise RankEndedError(f"{self.name} {self.ending()}")

    def await_ready(self) -> None:
        """Behind await_loaded(). Raises MachineError where it has ended."""
        self._expect(READY)
        self._is_ready = True

    def _expect(self, word: bytes) -> None:
        kind = self._sock.recv(1)
        if kind == FAILED:
            with self._sock.makefile("rb") as stream:
                raise MachineError(f"{self.name}: {stream.read().decode()}")
        if kind != word:
            raise MachineError(f"{self.name} {self.ending()} while it was loading")

    def receive(self, count: int) -> bytes:
        """The next words of it; less, where it has ended. Not for one that is watched."""
        return self._sock.recv(count, socket.MSG_WAITALL)

    def watch(
        self, on_end: Callable[[str], None], heard: Callable[[bytes], None] = lambda _: None, size: int = 1
    ) -> None:
        """Call heard, from another thread, with each word of `size` bytes that it says, and with b"" at its
        end; then on_end, if it ends before it is told to."""

        def wait() -> None:
            with suppress(OSError):
                while len(said := self.receive(size)) == size:
                    heard(said)
            heard(b"")
            if not self._is_ending:
                on_end(f"{self.name} {self.ending()}")

        threading.Thread(target=wait, name=self.name, daemon=True).start()

    def say(self, word: bytes) -> None:
        """Whether it is still there, watch() tells."""
        with suppress(OSError):
            self._sock.sendall(word)

    def close(self) -> None:
        """Idempotent."""
        self._is_ending = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if not self._is_ready:
            self._process.kill()  # it does not look at its socket while it loads
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ending(self) -> str:
        """In words for people."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(REAPED_S)
            return f"ended ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
        return "closed its socket"
