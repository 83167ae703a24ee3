"""Bytecode of modules that lie uncompiled, kept for the engines that come: a helper writes it, for an engine
writes no code that another one runs.

The helper is forked before the engine gives up its rights, and hears no more than the names of sources. It
compiles them itself, and can read none that an engine has written.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import py_compile
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from firelane.child_process import Child
from firelane.child_process.forked import fork_helper

KIND = "bytecode_helper"
MOST_BYTES = 1 << 16
HEARS_WITHIN_S = 5.0
LEAST_PRIORITY = 19
HEADER_BYTES = 16
"""The head of a compiled module: magic number, flags, time and size of the source (importlib, PEP 552)."""


class BytecodeHelper:
    """The engine's end of a helper that compiles once, and ends."""

    def __init__(self, child: Child, sock: socket.socket) -> None:
        self._child, self._sock = child, sock

    @classmethod
    def fork(cls, confine: Callable[[], None]) -> BytecodeHelper:
        """Called while the process has one thread, and little in memory. confine: gives up the helper's
        rights."""

        def work(sock: socket.socket) -> None:
            confine()
            _compile_all(sock)

        return cls(*fork_helper(work, KIND))

    def tell(self) -> None:
        """Have the modules compiled that were imported by now, for the place where Python looks for them. The
        helper ends then. May wait until it has heard all, but not for one that is stopped."""
        names = [os.fsencode(name) for name in _sources()]
        self._sock.settimeout(HEARS_WITHIN_S)
        with self._sock, contextlib.suppress(OSError):  # it was lost: the next start tells another one
            self._sock.sendall(os.fsencode(sys.pycache_prefix or ""))
            for name in names:
                self._sock.sendall(name)

    def check(self) -> None:
        """Take its end."""
        if self._child.has_ended:
            self._child.end()


def _sources() -> Iterator[str]:
    for module in list(sys.modules.values()):
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.cached is not None and spec.origin is not None:
            yield spec.origin


def _compile_all(sock: socket.socket) -> None:
    """A helper's work. The first message names the place for what is compiled; "" asks for nothing."""
    prefix, *names = iter(lambda: sock.recv(MOST_BYTES), b"")
    if not prefix:
        return
    sys.pycache_prefix = os.fsdecode(prefix)
    os.nice(LEAST_PRIORITY)
    for name in names:
        with contextlib.suppress(OSError, py_compile.PyCompileError, ValueError):
            _compile(Path(os.fsdecode(name)))


def _compile(source: Path) -> None:
    """Raises OSError, ValueError and PyCompileError."""
    if ".." in source.parts:
        raise ValueError(f"{source} is another file than its name says")
    compiled = Path(importlib.util.cache_from_source(str(source)))
    if not _is_current(compiled, source):
        mode = py_compile.PycInvalidationMode.TIMESTAMP
        py_compile.compile(str(source), doraise=True, invalidation_mode=mode)


def _is_current(compiled: Path, source: Path) -> bool:
    found = source.stat()
    expected = importlib.util.MAGIC_NUMBER + bytes(4)
    expected += b"".join((n & 0xFFFFFFFF).to_bytes(4, "little") for n in (int(found.st_mtime), found.st_size))
    try:
        with compiled.open("rb") as file:
            return file.read(HEADER_BYTES) == expected
    except OSError:
        return False
