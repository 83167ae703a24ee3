"""Compiling for processes that load compiled kernels, and may not write them.

An engine that somebody has taken over could otherwise leave code where other processes load theirs. So two
helpers are forked before the engine gives up its rights. They alone write to the directory of kernels, and a
library's name is the hash of all that it was made from: who asks for other code gets it under another name.

Both helpers read from one socket, so that one of them is enough, whatever becomes of the other. Each request
is worked on by a child of a helper. One that ends without an answer is asked for again by who has asked, and
one that is stopped is killed by its helper.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import firelane
from firelane import env
from firelane.child_process import Child, end_with_parent
from firelane.child_process.forked import fork_at, forked_child, seqpacket_pair
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
KIND = "compile_helper"
HELPERS = 2
LOOK_S = 0.5
"""Between two looks at who works on a request."""
SAFE_FLAG = re.compile(r"-(O[0-3]|m[a-z0-9][a-z0-9.=+_-]*|D[A-Z0-9_]+(=[A-Za-z0-9_]+)?|std=c\+\+\d+)")
"""Others could name programs and libraries for the compiler to run."""


_requests = msgspec.json.Decoder(CompileRequest)


def fork_service(cache_dir: Path, confine: Callable[[], None]) -> int:
    """The socket of new helpers, which end with this process. Called while it has one thread, and little in
    memory. confine: gives up a helper's rights."""

    def work(sock: socket.socket) -> None:
        confine()
        _serve(sock, cache_dir)

    ours, theirs = seqpacket_pair()
    with theirs:
        for _ in range(HELPERS):
            fork_at(theirs, work, KIND)
    os.set_inheritable(ours.fileno(), True)
    return ours.detach()


def _serve(sock: socket.socket, cache_dir: Path) -> None:
    """A helper's work, until all askers have gone."""
    sock.setblocking(False)  # the other helper may have read what was there
    workers: list[Child] = []
    while True:
        workers = [worker for worker in workers if not _is_over(worker)]
        select.select([sock], [], [], LOOK_S if workers else None)
        try:
            message, fds, _, _ = socket.recv_fds(sock, 1, 2)
        except BlockingIOError:
            continue
        if not message:
            return
        if len(fds) == 2:
            workers.append(_fork_worker(fds[0], fds[1], cache_dir))
        for fd in fds:
            os.close(fd)


def _is_over(worker: Child) -> bool:
    """Whether a worker has ended, or was stopped: then it is killed."""
    if not worker.has_ended and not worker.is_stopped():
        return False
    worker.end()
    return True


def _fork_worker(memory: int, pipe: int, cache_dir: Path) -> Child:
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        _answer(memory, pipe, cache_dir)
    return forked_child(os.pidfd_open(pid))


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
