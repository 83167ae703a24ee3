"""Processes that try out grammars, and who starts them: the engine itself, or, where it may start no
programs, a helper that it forked before."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO, Protocol

import msgspec

from firelane import env
from firelane.child_process import end_with_parent

MODULE = "firelane.engine.grammar.trial"
MOST_BYTES = 1 << 16
"""Of the arguments of one process."""


class Trial(Protocol):
    """One process; see the module `trial` for what its pipes carry."""

    @property
    def stdin(self) -> IO[bytes]: ...
    @property
    def stdout(self) -> IO[bytes]: ...
    @property
    def has_ended(self) -> bool: ...
    def end(self) -> None:
        """Kill it, and close the pipes."""
        ...


StartTrial = Callable[[Sequence[str]], Trial]
"""From arguments to a process. Raises OSError. Called by several threads."""


class ChildTrial:
    """A child of this process."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        _close(self.stdin, self.stdout)


class HelperTrial:
    """A child of the helper, known by a descriptor: its id may be another process's by now."""

    def __init__(self, process_fd: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._process_fd = process_fd
        self.stdin, self.stdout = stdin, stdout

    @property
    def has_ended(self) -> bool:
        poller = select.poll()
        poller.register(self._process_fd, select.POLLIN)
        return bool(poller.poll(0))

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process_fd, signal.SIGKILL)
        os.close(self._process_fd)
        _close(self.stdin, self.stdout)


class TrialHelper:
    """The engine's end of the helper, which starts nothing but trials."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._asking = threading.Lock()

    @classmethod
    def fork(cls) -> TrialHelper:
        """Called while the process has one thread, and little in memory. The helper ends with it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            with contextlib.suppress(BaseException):
                ours.close()
                _help(theirs)
            os._exit(0)
        theirs.close()
        return cls(ours)

    def start(self, arguments: Sequence[str]) -> Trial:
        """See StartTrial."""
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe()
        try:
            process_fd = self._ask(arguments, their_stdin, their_stdout)
        except OSError:
            os.close(stdin)
            os.close(stdout)
            raise
        finally:
            os.close(their_stdin)
            os.close(their_stdout)
        return HelperTrial(process_fd, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))

    def _ask(self, arguments: Sequence[str], *ends: int) -> int:
        with self._asking:
            socket.send_fds(self._sock, [msgspec.json.encode(arguments)], ends)
            _, fds, _, _ = socket.recv_fds(self._sock, 1, 1)
        if not fds:
            raise OSError("the helper started no process")
        return fds[0]


def _help(sock: socket.socket) -> None:
    """Until the engine ends. Nothing of what the engine has open stays open here."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a trial
    os.closerange(3, sock.fileno())
    os.closerange(sock.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    while True:
        message, fds, _, _ = socket.recv_fds(sock, MOST_BYTES, 2)
        if not message:
            return
        found = _spawn(msgspec.json.decode(message, type=list[str]), *fds)
        socket.send_fds(sock, [b"."], found)
        for fd in (*fds, *found):
            os.close(fd)


def _spawn(arguments: Sequence[str], stdin: int, stdout: int) -> list[int]:
    """The descriptor of the process; none where there is none."""
    command = [sys.executable, "-m", MODULE, *arguments]
    actions = [
        (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    try:
        return [os.pidfd_open(os.posix_spawn(sys.executable, command, _environment(), file_actions=actions))]
    except OSError:
        return []


def _environment() -> dict[str, str]:
    return env.for_child(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))


def _close(*pipes: IO[bytes]) -> None:
    for pipe in pipes:
        with contextlib.suppress(BrokenPipeError):  # of what it did not read any more
            pipe.close()
