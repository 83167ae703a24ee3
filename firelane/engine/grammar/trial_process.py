"""Processes that try out grammars, and who starts them: the engine itself, or, where it may start no
programs, helpers that it forked before."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import IO, Protocol

from firelane import env
from firelane.child_process import Replacements
from firelane.child_process.nursery import Nursery, NurseryChild, python_path

MODULE = "firelane.engine.grammar.trial"
HELPER = "grammar_helper"


class Trial(Protocol):
    """One process; see the module `trial` for what its pipes carry."""

    @property
    def stdin(self) -> IO[bytes]: ...
    @property
    def stdout(self) -> IO[bytes]: ...
    @property
    def has_ended(self) -> bool: ...
    def end(self) -> int | None:
        """Kill it unless it has ended, and close the pipes. Returns its code as in Popen.returncode, None
        where nobody saw its end. Called once."""
        ...


StartTrial = Callable[[Sequence[str]], Trial]
"""From arguments to a process. Raises OSError where the system makes none, and MachineError where this
process will never have one again. Called by several threads."""


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

    def end(self) -> int:
        self._process.kill()
        code = self._process.wait()
        _close(self.stdin, self.stdout)
        return code


class HelperTrial:
    """A child of a helper."""

    def __init__(self, process: NurseryChild, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._process = process
        self.stdin, self.stdout = stdin, stdout

    @property
    def has_ended(self) -> bool:
        return self._process.has_ended

    def end(self) -> int | None:
        code = self._process.end()
        _close(self.stdin, self.stdout)
        return code


class HelperTrials:
    """Starts trials by helpers, which start nothing else."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery

    @classmethod
    def fork(cls, replaced: Replacements) -> HelperTrials:
        """Called while the process has one thread, and little in memory."""
        return cls(Nursery.fork(HELPER, _spawn, replaced))

    def check(self) -> None:
        """Replace helpers that have ended."""
        self._nursery.check()

    def start(self, arguments: Sequence[str]) -> Trial:
        """See StartTrial."""
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe()
        try:
            process = self._nursery.start(arguments, [their_stdin, their_stdout])
        except BaseException:
            os.close(stdin)
            os.close(stdout)
            raise
        finally:
            os.close(their_stdin)
            os.close(their_stdout)
        return HelperTrial(process, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))


def _spawn(arguments: Sequence[str], fds: Sequence[int]) -> int:
    """fds: its standard input and output."""
    stdin, stdout = fds
    actions = [
        (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_DUP2, stdout, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    command = [sys.executable, "-m", MODULE, *arguments]
    return os.posix_spawn(sys.executable, command, _environment(), file_actions=actions)


def _environment() -> dict[str, str]:
    return env.for_child(PYTHONPATH=python_path())


def _close(*pipes: IO[bytes]) -> None:
    for pipe in pipes:
        with contextlib.suppress(BrokenPipeError):  # of what it did not read any more
            pipe.close()
