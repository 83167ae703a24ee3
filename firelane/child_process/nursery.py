"""Processes for one that may start none itself: two helpers, forked while it still could, start them for it.
Each helper replaces the other when that one dies or hangs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence

import msgspec

from firelane.child_process.own import end_with_parent
from firelane.child_process.replacements import Replacements
from firelane.errors import MachineError

ANSWER_S = 5.0
"""Until a helper that does not answer counts as hung."""
MOST_BYTES = 1 << 16
"""Most bytes of one process's arguments."""
MOST_FDS = 4
HELPERS = 2
START, END, FORK = b"s", b"e", b"f"
DONE, FAILED = b".", b"!"
Spawn = Callable[[Sequence[str], Sequence[int]], int]
"""Starts a process with these arguments and file descriptors, in a helper; returns its id. Raises OSError."""


class _HelperLostError(Exception):
    """The helper has ended, or does not answer."""


class NurseryChild:
    """A process that a helper has started. Known by a descriptor: its id may be another process's by now."""

    def __init__(self, helper: _Helper, process_fd: int) -> None:
        self._helper, self._process_fd = helper, process_fd

    @property
    def has_ended(self) -> bool:
        return _has_ended(self._process_fd)

    def end(self) -> int | None:
        """Kill the process unless it has ended, and release it. Returns its code as in Popen.returncode, or
        None where the helper that saw its end has gone, too. Called once."""
        try:
            return self._helper.end(self._process_fd)
        except _HelperLostError:
            _kill(self._process_fd)
            return None
        finally:
            os.close(self._process_fd)


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
        metrics. The helpers end with this process."""
        return cls(kind, [_forked(spawn) for _ in range(HELPERS)], replaced)

    @classmethod
    def launch(cls, kind: str, spawn_helper: Callable[[int], int], replaced: Replacements) -> Nursery:
        """For a process that has threads. spawn_helper: starts a program that calls `serve` on the socket of
        this descriptor; returns its id. Raises OSError."""
        return cls(kind, [_launched(spawn_helper) for _ in range(HELPERS)], replaced)

    def start(self, arguments: Sequence[str], fds: Sequence[int]) -> NurseryChild:
        """A new process. The descriptors stay the caller's. Raises OSError where the system makes no process,
        MachineError where no helper is left."""
        while True:
            helper = self._first()
            try:
                return helper.start(arguments, fds)
            except _HelperLostError as error:
                self._replace(helper, str(error))

    def check(self) -> None:
        """Replace helpers that have ended. Does not wait for one that hangs: `start` notices that."""
        for helper in list(self._helpers):
            if helper.has_ended:
                with contextlib.suppress(MachineError):
                    self._replace(helper, "has ended")

    def close(self) -> None:
        """The helpers end with their sockets. Idempotent."""
        helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.close()

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

    def __init__(self, sock: socket.socket, process_fd: int) -> None:
        self._sock, self._process_fd = sock, process_fd
        self._asking = threading.Lock()
        sock.settimeout(ANSWER_S)

    @property
    def has_ended(self) -> bool:
        return _has_ended(self._process_fd)

    def start(self, arguments: Sequence[str], fds: Sequence[int]) -> NurseryChild:
        """Raises OSError and _HelperLostError."""
        _, made = self._ask(START + msgspec.json.encode(arguments), fds)
        if not made:
            raise OSError("the helper started no process")
        return NurseryChild(self, made[0])

    def fork(self) -> _Helper:
        """Another helper. Raises OSError and _HelperLostError."""
        ours, theirs = _pair()
        with theirs:
            try:
                _, made = self._ask(FORK, [theirs.fileno()])
                if not made:
                    raise OSError("no room for a process")
            except BaseException:
                ours.close()
                raise
        return _Helper(ours, made[0])

    def end(self, process_fd: int) -> int:
        """Raises _HelperLostError."""
        told, _ = self._ask(END, [process_fd])
        try:
            return int(told)
        except ValueError:
            raise _HelperLostError("does not know the process") from None

    def kill(self) -> None:
        _kill(self._process_fd)
        self.close()

    def close(self) -> None:
        self._sock.close()
        with contextlib.suppress(OSError):
            os.waitid(os.P_PIDFD, self._process_fd, os.WEXITED | os.WNOHANG)
        os.close(self._process_fd)

    def _ask(self, message: bytes, fds: Sequence[int]) -> tuple[bytes, list[int]]:
        with self._asking:
            try:
                socket.send_fds(self._sock, [message], fds)
                told, made, _, _ = socket.recv_fds(self._sock, MOST_BYTES, 1)
            except TimeoutError:
                raise _HelperLostError(f"has not answered for {ANSWER_S:g} s") from None
            except OSError as error:
                raise _HelperLostError(f"has ended ({error.strerror or error})") from None
        if not told:
            raise _HelperLostError("has ended")
        return told[1:], made


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _forked(spawn: Spawn) -> _Helper:
    ours, theirs = _pair()
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        _run(theirs, spawn)
    theirs.close()
    return _Helper(ours, os.pidfd_open(pid))


def _launched(spawn_helper: Callable[[int], int]) -> _Helper:
    ours, theirs = _pair()
    try:
        with theirs:
            return _Helper(ours, os.pidfd_open(spawn_helper(theirs.fileno())))
    except OSError:
        ours.close()
        raise


def _run(sock: socket.socket, spawn: Spawn) -> None:
    """All of a helper's life; does not return. Nothing of what its parent has open stays open."""
    with contextlib.suppress(BaseException):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner's parent decides
        os.closerange(3, sock.fileno())
        os.closerange(sock.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        serve(sock, spawn)
    os._exit(0)


def serve(sock: socket.socket, spawn: Spawn) -> None:
    """A helper's work, until its owner has gone."""
    forked: list[int] = []
    while True:
        message, fds, _, _ = socket.recv_fds(sock, MOST_BYTES, MOST_FDS)
        if not message:
            return
        forked = [pid for pid in forked if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        made: list[int] = []
        answer = DONE
        try:
            if message[:1] == START:
                pid = spawn(msgspec.json.decode(message[1:], type=list[str]), fds)
                made = [os.pidfd_open(pid)]
            elif message == FORK:
                made, forked = _fork_another(fds[0], spawn, forked)
            else:
                answer += b"%d" % _ended(fds[0])
        except OSError:
            answer = FAILED
        socket.send_fds(sock, [answer], made)
        for fd in (*fds, *made):
            os.close(fd)


def _fork_another(fd: int, spawn: Spawn, forked: list[int]) -> tuple[list[int], list[int]]:
    """Its descriptor, and all that were forked here. It does not end with this one: it may outlive it."""
    pid = os.fork()
    if pid == 0:
        _run(socket.socket(fileno=fd), spawn)
    return [os.pidfd_open(pid)], [*forked, pid]


def _ended(process_fd: int) -> int:
    """The code of a child that ends now, as in Popen.returncode. Raises OSError where it is no child."""
    _kill(process_fd)
    found = os.waitid(os.P_PIDFD, process_fd, os.WEXITED)
    assert found is not None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _kill(process_fd: int) -> None:
    """Kill it, unless it has ended, or has more rights than this process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(process_fd, signal.SIGKILL)


def _has_ended(process_fd: int) -> bool:
    poller = select.poll()
    poller.register(process_fd, select.POLLIN)
    return bool(poller.poll(0))


def python_path() -> str:
    """PYTHONPATH for a process that is to find the modules of this one."""
    return os.pathsep.join(filter(None, sys.path))
