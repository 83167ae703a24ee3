"""Rights an engine gives up: at its start files and the network, once its model is loaded the starting of
programs."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterable
from importlib.util import cache_from_source
from pathlib import Path

import firelane
from firelane import env
from firelane.sandbox import landlock, seccomp
from firelane.sandbox.calls import NEVER, NO_CHANGES, NO_FILE_RIGHTS, NO_NETWORK, NO_PROGRAMS
from firelane.sandbox.landlock import WRITE
from firelane.sandbox.paths import (
    PYTHON_CACHE,
    Rule,
    bytecode_rules,
    compiler_launcher,
    compiler_rules,
    engine_rules,
    fabric_rules,
    python_rules,
)
from firelane.sandbox.serving import serving_calls
from firelane.sandbox.system import Machine, gain_nothing, this_machine

log = logging.getLogger(__name__)
IMPORTED = ("engine", "process", "process.py")
"""One of the first modules after the sandbox is closed."""


def confine(
    settings: env.Environment,
    cache_dir: Path,
    models: Iterable[Path],
    writes: Iterable[Path] = (),
    *,
    network: bool = False,
) -> None:
    """Confine the process that calls this, which has one thread: others that run already would keep their
    rights. models: directories that it reads; writes: those that it also writes to, beside its caches.
    network: it is left to it, until `forbid_network`. What the kernel has not is left out: `lacks` tells
    it."""
    machine = this_machine()
    if machine is None:
        return
    launched = compiler_launcher(settings) is not None  # a script may set rights of what it makes
    try:
        gain_nothing(machine)
        if not launched and landlock.abi(machine):
            rules = engine_rules(settings, cache_dir, list(models), network=network)
            landlock.restrict(machine, [*rules, *((path, WRITE) for path in writes)], network=network)
            _compile_python_to(cache_dir / PYTHON_CACHE)
        if seccomp.has_filters(machine):
            files, links = () if launched else NO_FILE_RIGHTS, () if network else NO_NETWORK
            seccomp.refuse(machine, [*NEVER, *files, *links])
    except OSError as error:
        log.warning("sandbox: not closed (%s)", error.strerror)


def confine_compiler(settings: env.Environment, cache_dir: Path) -> None:
    """Give up what a process does not need that compiles for an engine."""
    machine = this_machine()
    if machine is None:
        return
    launched = compiler_launcher(settings) is not None
    with contextlib.suppress(OSError):
        gain_nothing(machine)
        if not launched and landlock.abi(machine):
            landlock.restrict(machine, compiler_rules(settings, cache_dir))
        if seccomp.has_filters(machine):
            files = () if launched else NO_FILE_RIGHTS
            seccomp.refuse(machine, [*NEVER, *files, *NO_NETWORK])


def confine_worker() -> None:
    """Confine a process that computes, and has all that it needs: it reads Python's files, and that is
    all."""
    _confine_to(python_rules())


def confine_bytecode(cache_dir: Path) -> None:
    """Confine a process that compiles modules of Python for engines."""
    _confine_to(bytecode_rules(cache_dir))


def _confine_to(rules: Iterable[Rule]) -> None:
    machine = this_machine()
    if machine is None:
        return
    with contextlib.suppress(OSError):
        gain_nothing(machine)
        if landlock.abi(machine):
            landlock.restrict(machine, rules)
        if seccomp.has_filters(machine):
            seccomp.allow_only(machine, serving_calls())


def confine_agent() -> None:
    """Confine a process that reads memory of other machines for an engine: Python's files, the network and
    its devices, and that is all."""
    machine = this_machine()
    if machine is None:
        return
    with contextlib.suppress(OSError):
        gain_nothing(machine)
        if landlock.abi(machine):
            landlock.restrict(machine, [*python_rules(), *fabric_rules()], network=True)
        if seccomp.has_filters(machine):
            seccomp.refuse(machine, [*NEVER, *NO_FILE_RIGHTS, *NO_PROGRAMS])


def serve_only(*, network: bool = False) -> None:
    """All threads of this process make only the system calls of serving from now on: they start no program
    and no process. network: connections may still be opened, until `forbid_network`."""
    calls = serving_calls(network=network)
    _close(lambda machine: seccomp.allow_only(machine, calls), "all system calls but a few may be made")


def forbid_network() -> None:
    """No thread of this process opens a connection from now on."""
    _close(lambda machine: seccomp.refuse(machine, NO_NETWORK), "the network may still be used")


def forbid_changes() -> None:
    """No thread of this process makes, opens for writing, renames or removes a file from now on. Those that
    are open stay so."""
    _close(lambda machine: seccomp.refuse(machine, NO_CHANGES), "caches may still be written")


def has_bytecode() -> bool:
    """Whether modules of Python were compiled when they were installed."""
    return Path(cache_from_source(str(Path(firelane.__path__[0], *IMPORTED)))).exists()


def _close(install: Callable[[Machine], None], otherwise: str) -> None:
    machine = this_machine()
    if machine is None or not seccomp.has_filters(machine):
        return
    try:
        install(machine)
    except OSError as error:
        log.warning("sandbox: %s (%s)", otherwise, error.strerror)


def lacks(settings: env.Environment) -> str | None:
    """Rights that this machine's sandbox does not keep an engine from, in words for people; None: nothing."""
    machine = this_machine()
    if machine is None:
        return "there is none on this system: engines have all rights of this user"
    without = [] if seccomp.has_filters(machine) else ["no seccomp filters: engines may use the network"]
    version = landlock.abi(machine)
    launcher = compiler_launcher(settings)
    if not version:
        without.append("the kernel has no Landlock: engines may use all files of this user")
    elif launcher is not None:
        without.append(
            f"{launcher} starts the compiler and may need any file, so engines may use all files of this "
            "user: set FIRELANE_CXX to the compiler itself"
        )
    return "; ".join(without) or None


def _compile_python_to(directory: Path) -> None:
    """The place for modules of Python that lie uncompiled, and would be compiled at each start: whoever
    compiles them for engines may not write beside them."""
    if not has_bytecode():
        sys.pycache_prefix = str(directory)
