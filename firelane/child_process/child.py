"""A process of this machine: its state as the system sees it. A child: started, known until its end, ended.
Waits until a descriptor of it can be used. A record of the children that were replaced.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from firelane.errors import MachineError

CODE_FIELD = 49
"""Index of the exit status (wait(2)) among the fields of /proc/PID/stat behind the name."""
OWN_SIGNALS = frozenset(
    (
        *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
        *(signal.SIGPROF, signal.SIGSYS, signal.SIGTRAP, signal.SIGXCPU, signal.SIGVTALRM),
    )
)
"""Signals that a process gets for what it does itself: a crash, or a limit of its time."""


class ProcessState(Protocol):
    """One process, as its system sees it: known to who has started it, asked by who watches."""

    def is_stopped(self) -> bool:
        """Whether the system does not run it (SIGSTOP)."""
        ...

    def waited_s(self) -> float:
        """Time that its threads have waited for a processor so far, together; 0 where nobody knows."""
        ...

    def kill(self) -> None:
        """End it at once, with all that it has started."""
        ...


class UnknownProcess:
    """ProcessState of a process that is not of this machine."""

    def is_stopped(self) -> bool:
        return False

    def waited_s(self) -> float:
        return 0.0

    def kill(self) -> None:
        pass


def waited_s(pid: int | None) -> float:
    """Time that the threads of a process have waited for a processor so far, together. Only Linux tells."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    try:
        return sum(int(thread.read_text().split()[1]) for thread in threads) / 1e9
    except (OSError, IndexError):  # one has ended meanwhile, or the system does not count
        return 0.0


def is_stopped(pid: int | None) -> bool:
    """Whether the system does not run a process (SIGSTOP). Only Linux tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def pid_of(process_fd: int) -> int:
    """The id of the process that a process file descriptor means; 0 where it has ended, or nobody knows."""
    try:
        lines = Path(f"/proc/self/fdinfo/{process_fd}").read_text().splitlines()
        found = next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), 0)
    except (OSError, ValueError, IndexError):
        return 0
    return max(found, 0)


def code_of(pid: int) -> int | None:
    """The code, as in Popen.returncode, of a process that is ending or that nobody has waited for; None where
    it lives or nothing is known of it. Only Linux tells."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = int(fields[CODE_FIELD])
    except (OSError, ValueError, IndexError):
        return None
    if status & 0x7F:
        return -(status & 0x7F)
    return status >> 8 if fields[0] in "ZX" else None


def is_own_doing(code: int | None) -> bool:
    """Whether a process ended by what it computed: it crashed, or exceeded a limit. False for one that was
    killed by another process, and for one whose end nobody saw (None). code: as in Popen.returncode."""
    return code is not None and (code > 0 or -code in OWN_SIGNALS)


def in_words(code: int | None) -> str:
    """The end of a process for people, such as "was killed by SIGKILL"."""
    if code is None:
        return "ended unseen"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


Streams = tuple[int | None, int | None, int | None]
"""Descriptors, or subprocess.DEVNULL, for a child's standard input, output and error; None: its parent's."""
INHERITED: Streams = (None, None, None)
SILENT: Streams = (subprocess.DEVNULL, subprocess.DEVNULL, subprocess.DEVNULL)
LOOK_EVERY_S = 0.01
"""Seconds between two looks, on systems that cannot wait for a process with a time limit."""


def no_process(what: str, error: OSError) -> MachineError:
    """The error of a server that has to do without. what: the process would have been."""
    reason = error.strerror or error
    return MachineError(f"no process for {what} ({reason}): free memory, or raise ulimits")


class Child:
    """A process that was started for this one, which ends it or waits for its end. Any thread may call it.

    The process keeps its id until `end` has taken its code: nothing here reaches another process.
    """

    def __init__(
        self,
        reap: Callable[[], int | None],
        *,
        pid: int = 0,
        fd: int | None = None,
        leads_group: bool = False,
    ) -> None:
        """reap: waits for the end, and returns its code as in Popen.returncode, or None where nobody saw it;
        pid: 0 where it is not known; fd: a process file descriptor, which is closed with this object, None
        where the system has none; leads_group: what the process has started is killed with it."""
        self.pid, self._fd, self._leads_group = pid, fd, leads_group
        self._reap = reap
        self._taking = threading.Lock()
        self._is_taken = False
        self.code: int | None = None
        """Its code, once its end was taken."""
        self.why_killed = ""
        """Why this process has killed it, in words for people."""

    def __del__(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        fds: Sequence[int] = (),
        streams: Streams = INHERITED,
        leads_group: bool = False,
    ) -> Child:
        """Run a program. fds: that it inherits; leads_group: Ctrl-C at a terminal does not reach it, either.
        Raises OSError where the system makes no process."""
        stdin, stdout, stderr = streams
        group = 0 if leads_group else None
        process = subprocess.Popen(
            command,
            pass_fds=fds,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            process_group=group,
            env=environ,
        )
        fd = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None
        return cls(process.wait, pid=process.pid, fd=fd, leads_group=leads_group)

    @classmethod
    def connected(
        cls,
        words: Sequence[str],
        environ: Mapping[str, str],
        *,
        fds: Sequence[int] = (),
        streams: Streams = INHERITED,
        leads_group: bool = False,
        kind: socket.SocketKind = socket.SOCK_STREAM,
    ) -> tuple[Child, socket.socket]:
        """Start a module of Firelane, which is the first of `words`; its arguments follow. Its first argument
        is the descriptor of one end of a socket, see `own.as_child`. Returns the other end, too."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        with contextlib.ExitStack() as on_error, theirs:
            on_error.enter_context(ours)
            module, *arguments = words
            command = [sys.executable, "-m", module, str(theirs.fileno()), *arguments]
            passed = [theirs.fileno(), *fds]
            child = cls.start(command, environ, fds=passed, streams=streams, leads_group=leads_group)
            on_error.pop_all()
        return child, ours

    @property
    def has_ended(self) -> bool:
        return self.ends_within(0.0)

    def ends_within(self, timeout_s: float | None) -> bool:
        """Wait for its end, which `end` still has to take. None: for ever."""
        if self._is_taken:
            return True
        if self._fd is None:
            return self._ends_unreaped(timeout_s)
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    async def exited(self) -> None:
        """Returns when it has ended, which `end` still has to take. Uses no thread where the system has
        process file descriptors."""
        if self.has_ended:
            return
        if self._fd is None:
            import asyncio  # here: engines, which wait in no loop, start without it

            await asyncio.to_thread(self._ends_unreaped, None)
        else:
            await ready_on_loop(self._fd, is_writing=False)

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def kill(self, why: str = "") -> None:
        """End it, and a leader's group with it, unless that has more rights than this process."""
        with self._taking:
            if self._is_taken:
                return
            self.why_killed = why
            if self._leads_group:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            else:
                self._signal(signal.SIGKILL)

    def end(self, within_s: float | None = 0.0) -> int | None:
        """Take its end, for which it gets so long (None: for ever) before it is killed. Returns `code`.
        Idempotent."""
        self.ends_within(within_s)
        self.kill(self.why_killed)
        with self._taking:
            if not self._is_taken:
                self.code = self._reap()
                self._is_taken = True
        return self.code

    def ending(self) -> str:
        """Words for people that say how the process ended. Waits for its end."""
        return self.why_killed or in_words(self.end(None))

    def is_stopped(self) -> bool:
        """Whether the process is stopped, as ProcessState tells."""
        flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        try:
            return self.pid > 0 and os.waitid(os.P_PID, self.pid, flags) is not None
        except ChildProcessError:  # another process's child
            return self._fd is not None and is_stopped(pid_of(self._fd))

    def waited_s(self) -> float:
        """Seconds that the process has waited, as ProcessState tells."""
        return waited_s(self.pid) if self.pid else 0.0

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._fd is not None:
                signal.pidfd_send_signal(self._fd, number)
            elif not self._is_taken:
                os.kill(self.pid, number)

    def _ends_unreaped(self, timeout_s: float | None) -> bool:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return False
            time.sleep(LOOK_EVERY_S)
        return True


async def ready_on_loop(fd: int, *, is_writing: bool, timeout_s: float | None = None) -> bool:
    """False where the time is over first. The descriptor may be closed meanwhile."""
    import asyncio  # here: engines, which wait in no loop, start without it

    loop, own = asyncio.get_running_loop(), os.dup(fd)
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (
        (loop.add_writer, loop.remove_writer) if is_writing else (loop.add_reader, loop.remove_reader)
    )

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    add(own, tell)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await ready
        return ready.done() and not ready.cancelled()
    finally:
        remove(own)
        os.close(own)


async def ready_here(fd: int, *, is_writing: bool, timeout_s: float | None = None) -> bool:
    """Wait like `ready_on_loop`, but never for an event loop: the calling thread does."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT if is_writing else select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


log = logging.getLogger(__name__)


class Replacements:
    """Children that were replaced because they died or hung, by kind of process. Any thread may call it.

    counts: replacements so far, by kind.
    broken: the reason why none of a kind can be had at present, by kind.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.broken: dict[str, str] = {}
        self._lock = threading.Lock()

    def note(self, kind: str, reason: str) -> None:
        """Count and log that a child is replaced. reason: how the one before ended, in words for people."""
        with self._lock:
            self.counts = {**self.counts, kind: self.counts.get(kind, 0) + 1}
        log.warning("child_replaced kind=%s reason=%r", kind, reason)

    def fails(self, kind: str, reason: str) -> None:
        """No child of this kind can be had. Logged when that is new."""
        with self._lock:
            is_new = kind not in self.broken
            self.broken = {**self.broken, kind: reason}
        if is_new:
            log.error("child_not_replaced kind=%s reason=%r", kind, reason)

    def works(self, kind: str) -> None:
        """A child of this kind serves again."""
        if kind in self.broken:
            with self._lock:
                self.broken = {other: why for other, why in self.broken.items() if other != kind}
