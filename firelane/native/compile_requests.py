"""Requests to the helper that compiles for processes that may not write compiled kernels.

A request is one message on a socket that all askers of an engine share: a file in memory with what is asked,
and the end of a pipe for the answer.
"""

from __future__ import annotations

import logging
import os
import socket

import msgspec

from firelane.errors import CacheError, CompilerError


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True, tag="build"):
    """The arguments of Toolchain.build."""

    source: str
    include_dirs: list[str]
    flags: list[str]
    cpu_key: str
    name: str
    parts: int


class TakesRequest(msgspec.Struct, frozen=True, kw_only=True, tag="takes"):
    """The arguments of Toolchain.takes."""

    flags: list[str]


class Made(msgspec.Struct, frozen=True, tag="made"):
    """path: of the library."""

    path: str


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    is_taken: bool


class BuildFailed(msgspec.Struct, frozen=True, tag="failed"):
    """is_cache: the cache cannot be written; otherwise the compiler has failed."""

    reason: str
    is_cache: bool


CompileRequest = BuildRequest | TakesRequest
Answer = Made | Taken | BuildFailed
_answers = msgspec.json.Decoder(Answer)
TRIES = 3
"""Processes that work on one request, where others are killed meanwhile."""
log = logging.getLogger(__name__)


def ask(service: int, request: CompileRequest) -> Answer:
    """The answer of a helper behind the socket `service`. A request whose process has ended is sent again.
    Raises CompilerError, CacheError."""
    told = _told(service, request)
    for _ in range(TRIES - 1):
        if told:
            break
        log.warning("child_replaced kind=compiler reason='the process that compiles has ended'")
        told = _told(service, request)
    if not told:
        raise CompilerError("the process that compiles has ended")
    found = _answers.decode(told)
    if isinstance(found, BuildFailed):
        raise CacheError(found.reason) if found.is_cache else CompilerError(found.reason)
    return found


def _told(service: int, request: CompileRequest) -> bytes:
    """The bytes that a helper has answered; none where it has not. CompilerError where none is left."""
    memory = os.memfd_create("firelane-compile", os.MFD_CLOEXEC)
    answer, theirs = os.pipe()
    with os.fdopen(memory, "wb") as file, os.fdopen(answer, "rb") as pipe:
        try:
            file.write(msgspec.json.encode(request))
            file.flush()
            with socket.socket(fileno=os.dup(service)) as sock:
                socket.send_fds(sock, [b"c"], [memory, theirs])
        except OSError as error:
            raise CompilerError(f"the process that compiles has ended ({error.strerror})") from error
        finally:
            os.close(theirs)
        return pipe.read()
