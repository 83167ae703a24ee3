"""Compiling for processes that load compiled kernels, and may not write them.

An engine that somebody has taken over could otherwise leave code where other processes load theirs. So a
helper is forked before the engine gives up its rights. It alone writes to the directory of kernels, and a
library's name is the hash of all that it was made from: who asks for other code gets it under another name.

Each request is worked on by a child of the helper.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import firelane
from firelane import env
from firelane.child_process import end_with_parent
from firelane.child_process.forked import fork_helper
from firelane.errors import CacheError, FirelaneError, UsageError
from firelane.native.compile_requests import (
    Answer,
    BuildFailed,
    BuildRequest,
    CompileRequest,
    Made,
    Taken,
    TakesRequest,
)

MOST_REQUEST_BYTES = 64 << 20
SAFE_FLAG = re.compile(r"-(O[0-3]|m[a-z0-9][a-z0-9.=+_-]*|D[A-Z0-9_]+(=[A-Za-z0-9_]+)?|std=c\+\+\d+)")
"""Others could name programs and libraries for the compiler to run."""


_requests = msgspec.json.Decoder(CompileRequest)


def fork_service(cache_dir: Path, confine: Callable[[], None]) -> int:
    """The socket of a new helper, which ends with this process. Called while it has one thread, and little in
    memory. confine: gives up the helper's rights."""

    def work(sock: socket.socket) -> None:
        confine()
        _serve(sock, cache_dir)

    _, ours = fork_helper(work)
    os.set_inheritable(ours.fileno(), True)
    return ours.detach()


def _serve(sock: socket.socket, cache_dir: Path) -> None:
    """A helper's work, until all askers have gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for who has answered
    while True:
        message, fds, _, _ = socket.recv_fds(sock, 1, 2)
        if not message:
            return
        if len(fds) == 2 and os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            end_with_parent()
            _answer(fds[0], fds[1], cache_dir)
        for fd in fds:
            os.close(fd)


def _answer(memory: int, pipe: int, cache_dir: Path) -> None:
    """One child's work; does not return."""
    with contextlib.suppress(BaseException):
        content = os.pread(memory, MOST_REQUEST_BYTES, 0)
        with os.fdopen(pipe, "wb") as file:
            file.write(msgspec.json.encode(answer_to(content, cache_dir)))
    sys.stderr.flush()
    os._exit(0)


def answer_to(content: bytes, cache_dir: Path) -> Answer:
    """The answer of a helper to a request."""
    from firelane.native.toolchain import find_compiler  # only where something is compiled

    try:
        request = _requests.decode(content)
        _check(request)
        compiler = find_compiler(env.read())
        if isinstance(request, TakesRequest):
            return Taken(compiler.takes(request.flags, cache_dir))
        arguments = msgspec.structs.asdict(request)
        arguments["include_dirs"] = [Path(name) for name in request.include_dirs]
        return Made(str(compiler.build(**arguments, cache_dir=cache_dir)))
    except CacheError as error:
        return BuildFailed(str(error), is_cache=True)
    except (FirelaneError, OSError, msgspec.MsgspecError) as error:
        return BuildFailed(str(error), is_cache=False)


def _check(request: CompileRequest) -> None:
    """Raises UsageError for what no backend asks for."""
    for flag in request.flags:
        if not SAFE_FLAG.fullmatch(flag):
            raise UsageError(f"kernels are not compiled with {flag}")
    if isinstance(request, BuildRequest):
        _check_include_dirs(request.include_dirs)


def _check_include_dirs(names: Sequence[str]) -> None:
    packages = [Path(path).resolve() for path in firelane.__path__]
    for name in names:
        if not any(Path(name).resolve().is_relative_to(package) for package in packages):
            raise UsageError(f"{name} is no directory of Firelane's headers")
