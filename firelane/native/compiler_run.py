"""A run of a compiler, which is done again where another process killed it or stopped it."""

from __future__ import annotations

import functools
import logging
import subprocess
import threading
from collections.abc import Sequence

from firelane.child_process.child import in_words, is_own_doing
from firelane.errors import CompilerError
from firelane.native.compiler_group import LostPrograms

INSTALL_HINT = "install g++ (or clang++), or `pip install 'firelane[compiler]'`"
TRIES = 3
"""Runs of a compiler that another process kills: the system does so, too, where memory is short."""
LOOK_S = 0.5
"""Between two looks at whether a program of a run is lost."""
KILLED_PARTS = (
    "Killed signal terminated program",
    "terminated with signal 9",
    "unable to execute command: Killed",
)
"""A compiler says so of a program that it has started: g++, its collect2, clang++."""
log = logging.getLogger(__name__)


def run_compiler(
    command: Sequence[str],
    environ: dict[str, str],
    *,
    name: str,
    group: int | None = None,
    left: threading.Event | None = None,
    errors: int = subprocess.STDOUT,
) -> subprocess.CompletedProcess[str]:
    """Run a compiler, and again where another process killed it, or a program of it. One that is stopped is
    killed within a second. name: of what is made, for the log; group: the process group that it joins,
    None: this process's own; left: nobody waits for it any more; errors: where its standard error goes.
    Raises CompilerError where there is none."""
    run = functools.partial(_run, command, environ, group, errors)
    try:
        done = run()
        for _ in range(TRIES - 1):
            if (left is not None and left.is_set()) or not was_killed(done):
                break
            log.warning("child_replaced kind=compiler reason=%r", f"of {name}: {in_words(done.returncode)}")
            done = run()
    except OSError as error:
        raise CompilerError(f"cannot run {command[0]} ({error.strerror}): {INSTALL_HINT}") from error
    return done


def was_killed(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether another process ended the compiler, or one of the programs that it starts."""
    if done.returncode >= 0:
        return done.returncode > 0 and any(part in done.stdout for part in KILLED_PARTS)
    return not is_own_doing(done.returncode)


def _run(
    command: Sequence[str], environ: dict[str, str], group: int | None, errors: int
) -> subprocess.CompletedProcess[str]:
    """One run. Raises OSError."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        errors="replace",
        env=environ,
        process_group=group,
    ) as process:
        lost = LostPrograms(process.pid, group)
        try:
            while True:
                try:
                    told, _ = process.communicate(timeout=LOOK_S)
                except subprocess.TimeoutExpired:
                    lost.kill()
                else:
                    return subprocess.CompletedProcess(command, process.returncode, told)
        except BaseException:
            process.kill()
            raise
