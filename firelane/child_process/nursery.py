"""Processes for one that may start none itself: two helpers, made while it still could, start them for it.
Each helper replaces the other when that one dies or hangs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from firelane.child_process.child import Child, Replacements, pid_of
from firelane.child_process.forked import (
    code_at,
    fork_helper,
    forked_child,
    run_forked,
    seqpacket_pair,
)
from firelane.errors import MachineError

ANSWER_S = 5.0
"""Until a helper that does not answer counts as hung."""
LOOK_S = 0.5
"""Between two looks at whether a helper that has not answered is stopped."""
END_S = 1.0
"""For a helper to end by itself."""
MOST_BYTES = 64
HELPERS = 2
START, END, FORK = b"s", b"e", b"f"
DONE, FAILED = b".", b"!"
SOCKET_FD = 10
"""Descriptor of a process's socket, in the process: none that it has open at its start."""
Spawn = Callable[[int], int]
"""Starts a process with the socket of this descriptor, in a helper; returns its id. Raises OSError."""


class _HelperLostError(Exception):
    """The helper has ended, or does not answer."""


class Nursery:
    """The owner's end. Any thread may call it. Owns the helpers, which start nothing but what their Spawn
    does."""

    def __init__(self, kind: str, helpers: Sequence[_Helper], replaced: Replacements) -> None:
        self.kind = kind
        self._helpers = list(helpers)
        self._replaced = replaced
        self._replacing = threading.Lock()

    @classmethod
    def fork(cls, kind: str, spawn: Spawn, replaced: Replacements) -> Nursery:
        """Called while the process has one thread, and little in memory. kind: of the helpers, in logs and
        metrics. The helpers end with this process. One is forked now, for a start waits for it; that one
        forks the other at the first `check`."""
        first = _Helper(*fork_helper(lambda sock: serve(sock, spawn), kind))
        return cls(kind, [first], replaced)

    @classmethod
    def launch(
        cls, kind: str, words: Sequence[str], environ: Mapping[str, str], replaced: Replacements
    ) -> Nursery:
        """For a process that has threads. words: the module, with its arguments, that calls `serve` on its
        socket. Raises OSError."""
        streams = (subprocess.DEVNULL, 2, None)
        made = [
            Child.connected(words, environ, streams=streams, kind=socket.SOCK_SEQPACKET)
            for _ in range(HELPERS)
        ]
        return cls(kind, [_Helper(*one) for one in made], replaced)

    def connected(self, kind: socket.SocketKind = socket.SOCK_STREAM) -> tuple[Child, socket.socket]:
        """A new process, and this end of its socket. Raises OSError where the system makes none, MachineError
        where no helper is left."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        with contextlib.ExitStack() as on_error, theirs:
            on_error.enter_context(ours)
            child = self._start(theirs.fileno())
            on_error.pop_all()
        return child, ours

    def check(self) -> None:
        """Replace helpers that have ended or are stopped, and have those made that are missing. Does not wait
        for one that hangs: `connected` notices that."""
        for helper in list(self._helpers):
            if reason := helper.lost():
                with contextlib.suppress(MachineError):
                    self._replace(helper, reason)
        with self._replacing, contextlib.suppress(_HelperLostError, OSError):
            while 0 < len(self._helpers) < HELPERS:
                self._helpers.append(self._helpers[0].fork())

    def close(self) -> None:
        """The helpers end with their sockets. Idempotent."""
        helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.close()

    def _start(self, fd: int) -> Child:
        while True:
            helper = self._first()
            try:
                return helper.start(fd)
            except _HelperLostError as error:
                self._replace(helper, str(error))

    def _first(self) -> _Helper:
        helpers = self._helpers
        if not helpers:
            raise MachineError(f"no {self.kind} process is left: the engine has to be started again")
        return helpers[0]

    def _replace(self, lost: _Helper, reason: str) -> None:
        """Raises MachineError where no helper is left."""
        with self._replacing:
            if lost not in self._helpers:
                return
            self._helpers.remove(lost)
            lost.kill()
            while self._helpers:
                try:
                    self._helpers.append(self._helpers[0].fork())
                except _HelperLostError:
                    self._helpers.pop(0).kill()
                    continue
                except OSError as error:
                    reason = f"{reason}, and the other one starts none: {error}"
                self._replaced.note(self.kind, f"the process {reason}")
                return
            self._replaced.fails(self.kind, "all such processes were lost at the same time")
        self._first()


class _Helper:
    """The owner's end of one helper."""

    def __init__(self, child: Child, sock: socket.socket) -> None:
        self.child, self._sock = child, sock
        self._asking = threading.Lock()
        sock.settimeout(LOOK_S)

    def lost(self) -> str:
        """Why it is of no use any more; "" where nothing is known of that."""
        if self.child.has_ended:
            return "has ended"
        return "is stopped" if self.child.is_stopped() else ""

    def start(self, fd: int) -> Child:
        """A process that the helper has started. Raises OSError and _HelperLostError."""
        process_fd = self._made(START, fd)
        return Child(lambda: self._end(process_fd), pid=pid_of(process_fd), fd=process_fd)

    def fork(self) -> _Helper:
        """Another helper. Raises OSError and _HelperLostError."""
        ours, theirs = seqpacket_pair()
        with contextlib.ExitStack() as on_error, theirs:
            on_error.enter_context(ours)
            child = forked_child(self._made(FORK, theirs.fileno()))
            on_error.pop_all()
        return _Helper(child, ours)

    def kill(self) -> None:
        self.child.kill()
        self.close()

    def close(self) -> None:
        """It ends with its socket. One that is stopped, and has more rights than this process, is let be."""
        self._sock.close()
        if self.child.ends_within(END_S):
            self.child.end()

    def _made(self, message: bytes, fd: int) -> int:
        _, made = self._ask(message, fd)
        if not made:
            raise OSError("the helper started no process")
        return made[0]

    def _end(self, process_fd: int) -> int | None:
        """Kill a process that may have more rights than this one. Returns its code; None where the helper
        that saw its end has gone, too."""
        with contextlib.suppress(_HelperLostError, ValueError):
            return int(self._ask(END, process_fd)[0])
        return None

    def _ask(self, message: bytes, fd: int) -> tuple[bytes, list[int]]:
        with self._asking:
            try:
                socket.send_fds(self._sock, [message], [fd])
                told, made = self._answer()
            except OSError as error:
                raise _HelperLostError(f"has ended ({error.strerror or error})") from None
        if not told:
            raise _HelperLostError("has ended")
        return told[1:], made

    def _answer(self) -> tuple[bytes, list[int]]:
        """Raises OSError and _HelperLostError."""
        for _ in range(round(ANSWER_S / LOOK_S)):
            try:
                told, made, _, _ = socket.recv_fds(self._sock, MOST_BYTES, 1)
            except TimeoutError:
                if self.child.is_stopped():
                    raise _HelperLostError("is stopped") from None
            else:
                return told, made
        raise _HelperLostError(f"has not answered for {ANSWER_S:g} s")


def serve(sock: socket.socket, spawn: Spawn) -> None:
    """A helper's work, until its owner has gone."""
    forked: list[int] = []
    while True:
        message, fds, _, _ = socket.recv_fds(sock, MOST_BYTES, 1)
        if not message:
            return
        forked = [pid for pid in forked if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        made: list[int] = []
        answer = DONE
        try:
            if message == START:
                made = [os.pidfd_open(spawn(fds[0]))]
            elif message == FORK:
                pid = _fork_another(fds[0], spawn)
                made, forked = [os.pidfd_open(pid)], [*forked, pid]
            else:
                answer += b"%d" % _ended(fds[0])
        except OSError:
            answer = FAILED
        socket.send_fds(sock, [answer], made)
        for fd in (*fds, *made):
            os.close(fd)


def _fork_another(fd: int, spawn: Spawn) -> int:
    """Its id. It does not end with this one: it may outlive it."""
    pid = os.fork()
    if pid == 0:
        run_forked(socket.socket(fileno=fd), lambda sock: serve(sock, spawn))
    return pid


def _ended(process_fd: int) -> int:
    """The code of a child that ends now. Raises OSError where it is no child."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process_fd, signal.SIGKILL)
    return code_at(process_fd)


def spawn_module(words: Sequence[str], environ: Mapping[str, str], fd: int, *, shows_errors: bool) -> int:
    """The id of a process that runs a module, whose first argument is its socket's descriptor. shows_errors:
    what it writes goes to standard error. Raises OSError."""
    module, *arguments = words
    command = [sys.executable, "-m", module, str(SOCKET_FD), *arguments]
    nowhere = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
    actions = [
        (os.POSIX_SPAWN_DUP2, fd, SOCKET_FD),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        *([] if shows_errors else [nowhere]),
        (os.POSIX_SPAWN_DUP2, 2, 1),
    ]
    return os.posix_spawn(sys.executable, command, environ, file_actions=actions)


def python_path() -> str:
    """PYTHONPATH for a process that is to find the modules of this one."""
    return os.pathsep.join(filter(None, sys.path))
