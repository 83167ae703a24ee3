"""RankProcess: the process of another rank, as the rank that leads sees it."""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from struct import Struct

from firelane import env
from firelane.backends.ranks.words import (
    FAILED,
    GIVEN,
    HELLO,
    LOADED,
    ORDER,
    READY,
    RESTED,
    SIZES,
    Task,
    send_task,
)
from firelane.child_process import Child
from firelane.child_process.child import is_own_doing
from firelane.contract import GivenBack
from firelane.errors import KilledError, MachineError

HELLO_S = 60.0
"""Until a rank that was started has to be there."""
END_S = 5.0
"""Until a rank that was told to end is killed."""
REAPED_S = 30.0
"""Until the system has ended a process whose socket it has closed: a busy one takes its time."""
STOPPED_S = 1.0
"""Between two looks at whether a rank that says nothing is stopped."""


class RankEndedError(MachineError):
    """A rank that has ended while others may be waiting for it."""


def _compiler() -> tuple[int, ...]:
    """The socket of the helper that compiles for an engine and its ranks."""
    fd = env.read().compiler_fd
    return () if fd is None else (fd,)


class RankProcess:
    """The process of another rank, which runs `module` with the descriptor of its socket as its argument;
    send_task() tells it `task`. fds: that it inherits."""

    def __init__(self, module: str, task: Task, fds: Sequence[int]) -> None:
        self._task = task
        self.weights_bytes = self.kv_bytes = 0
        self._why = ""
        self._is_ending = self._is_loaded = self._is_ready = False
        self._rested: SimpleQueue[GivenBack | None] = SimpleQueue()
        self._child, self._sock = Child.connected([module], env.for_child(), fds=(*fds, *_compiler()))

    def send_task(self) -> None:
        """Raises MachineError where nobody reads it."""
        self._sock.settimeout(HELLO_S)
        try:
            send_task(self._sock, self._task)
        except OSError as error:
            raise MachineError(f"{self.name} did not take its task: {error}") from error

    @property
    def name(self) -> str:
        return f"rank {self._task.rank} of the model"

    @property
    def pid(self) -> int:
        return self._child.pid

    def await_loaded(self) -> None:
        """Raises MachineError where it has ended, or is not there after HELLO_S."""
        if self._is_loaded:
            return
        try:
            self._expect(HELLO, "before it began to load")
        except TimeoutError as error:
            raise MachineError(
                f"{self.name} did not appear within {HELLO_S:.0f} s: the machine may be "
                "overloaded, or out of memory"
            ) from error
        self._sock.settimeout(None)
        self._expect(LOADED, "while it was loading")
        self._is_loaded = True

    def check(self) -> None:
        """Raises RankEndedError where it has said that it is loaded, and has ended before await_ready()."""
        if not self._is_loaded or not self._child.has_ended:
            return
        try:
            self._expect(READY, "while it was loading")
        except MachineError as error:
            raise RankEndedError(str(error)) from error
        raise RankEndedError(f"{self.name} {self.ending()}")

    def await_ready(self) -> None:
        """Raises MachineError where it has ended, or is not there after HELLO_S."""
        self.await_loaded()
        self._expect(READY, "while it was loading")
        self.weights_bytes, self.kv_bytes = self._numbers(SIZES)
        self._is_ready = True

    def _expect(self, word: bytes, when: str) -> None:
        said = self._receive(1)
        if said == FAILED:
            raise MachineError(f"{self.name}: {self._reason()}")
        if not said:
            raise self.lost(f"{self.ending()} {when}")
        if said != word:
            raise MachineError(f"{self.name} said {said!r} {when}, not {word!r}")

    def _receive(self, count: int) -> bytes:
        """Its next bytes; fewer, where it has ended."""
        try:
            return self._sock.recv(count, socket.MSG_WAITALL)
        except ConnectionError:
            return b""

    def _numbers(self, numbers: Struct) -> tuple[int, ...]:
        said = self._receive(numbers.size)
        if len(said) < numbers.size:
            raise self.lost(self.ending())
        return numbers.unpack(said)

    def _reason(self) -> str:
        """The rest of what it says, when it has failed."""
        said = b""
        while more := self._receive(1 << 12):
            said += more
        return said.decode(errors="replace")

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Call on_end, from another thread, with the reason if it ends before it is told to. One that the
        system does not run is killed."""

        def wait() -> None:
            with suppress(OSError, MachineError):
                while (said := self._next_word()) == RESTED:
                    self._rested.put(GivenBack(*self._numbers(GIVEN)))
                if said == FAILED:
                    self._why = f"{self.name}: {self._reason()}"
                elif said:
                    self._why = f"{self.name} said {said!r} in between"
            told = self._is_ending
            self._why = self._why or f"{self.name} {self.ending()}"
            self._rested.put(None)
            if not told:
                on_end(self._why)

        threading.Thread(target=wait, name=self.name, daemon=True).start()

    def _next_word(self) -> bytes:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while not self._is_ending and not poll.poll(STOPPED_S * 1000):
            if self._child.is_stopped():
                self._child.kill()
        return self._receive(1)

    def order(self, order: int) -> None:
        """Tell it to do something (words.ORDER). Whether it is still there, watch() tells."""
        with suppress(OSError):
            self._sock.sendall(ORDER.pack(order))

    def rested(self) -> GivenBack:
        """Wait until it is in standby; it is watched. Raises MachineError where it is gone."""
        found = self._rested.get()
        if found is None:
            self._rested.put(None)
            raise MachineError(f"{self.name} {self._why}, on its way to standby")
        return found

    def close(self) -> None:
        """Idempotent."""
        self._is_ending = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if not self._is_ready:
            self._child.kill()  # it does not look at its socket while it loads
        self._child.end(END_S)

    @property
    def was_killed(self) -> bool:
        """Whether it has ended through what others have done."""
        code = self._child.code
        return code is not None and code < 0 and not is_own_doing(code)

    def lost(self, how: str) -> MachineError:
        """The error of a rank that has ended; how: in words."""
        kind = KilledError if self.was_killed else MachineError
        return kind(f"{self.name} {how}")

    def ending(self) -> str:
        """In words for people."""
        if not self._child.ends_within(REAPED_S):
            return "closed its socket"
        code = self._child.end() or 0
        return f"ended ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
