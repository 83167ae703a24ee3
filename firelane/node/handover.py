"""A port's way from a server to its successor: the sockets that listen on it are passed over a Unix socket.

The successor asks when it is ready to serve. The server then stops accepting, gives what it held alone, and
goes on with the requests that it has. Connections that come in between wait in the kernel's queue, which both
processes share. A successor that says nothing more is none: the server takes up again what it gave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from firelane.errors import FirelaneError

log = logging.getLogger(__name__)
TAKE, SERVING = b"firelane take 1\n", b"serving\n"
SUCCESSOR_S = 30.0
"""Until a successor that has got the sockets has to serve."""
ANSWER_S = 60.0
"""Until a server that is asked has to have given them."""
MOST_SOCKETS = 64
MOST_BYTES = 1 << 16
LONGEST_PATH = 100
"""Bytes in the name of a Unix socket (unix(7) has 108, others less)."""

Sockets = Mapping[str, Sequence[socket.socket]]
"""Listening sockets by what they are for."""


class Owner(Protocol):
    """The server that gives its sockets away."""

    async def release(self) -> Sockets:
        """Copies of its sockets, which it accepts nothing from any more."""
        ...

    async def resume(self, sockets: Sockets) -> None:
        """There is no successor: accept again. Owns the sockets."""
        ...

    def succeeded(self) -> None:
        """Another server answers new connections."""
        ...


def socket_path(directory: Path, host: str, port: int) -> Path:
    """Place at which the server of this address can be asked."""
    return directory / f"{host.replace('/', '_')}-{port}.sock"


class HandoverPoint:
    """Place where successors ask. Owns the socket, from `open` to `close`."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self._path, self._owner = path, owner
        self._sock: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Nobody else serves this address: what lies there is a dead server's. Without a place for it the
        server just has no successor."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.parent.chmod(0o700)  # whoever can ask gets the port
            self._path.unlink(missing_ok=True)
            with _address(self._path) as address:
                sock.bind(address)
            sock.listen(1)
        except OSError as error:
            sock.close()
            log.info("no_handover path=%s error=%s", self._path, error)
            return
        sock.setblocking(False)
        self._sock = sock
        self._task = asyncio.get_running_loop().create_task(self._serve(sock))

    def close(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asking, _ = await loop.sock_accept(sock)
            with asking:
                asking.setblocking(False)
                if await self._asked(asking):
                    break
        self._sock = None  # the name is the successor's
        sock.close()
        self._owner.succeeded()

    async def _asked(self, asking: socket.socket) -> bool:
        """Whether it is a successor."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(SUCCESSOR_S):
                if await loop.sock_recv(asking, MOST_BYTES) == TAKE:
                    return await self._give(asking)
        return False

    async def _give(self, asking: socket.socket) -> bool:
        sockets = await self._owner.release()
        try:
            names = [name for name, own in sockets.items() for _ in own]
            fds = [sock.fileno() for own in sockets.values() for sock in own]
            socket.send_fds(asking, [json.dumps(names).encode()], fds)
            answer = await asyncio.get_running_loop().sock_recv(asking, MOST_BYTES)
        except BaseException:
            await self._owner.resume(sockets)
            raise
        if answer == SERVING:
            for sock in (sock for own in sockets.values() for sock in own):
                sock.close()
            return True
        log.warning("no_successor: it ended before it served; this server goes on")
        await self._owner.resume(sockets)
        return False


class Predecessor:
    """The server whose port is taken over, as its successor sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def find(cls, path: Path) -> Predecessor | None:
        """None where no server can be asked."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            with _address(path) as address:
                sock.connect(address)
        except OSError:
            sock.close()
            return None
        sock.settimeout(ANSWER_S)
        return cls(sock)

    def take(self) -> Sockets:
        """Blocks until it has stopped accepting. Raises FirelaneError."""
        try:
            self._sock.sendall(TAKE)
            message, fds, _, _ = socket.recv_fds(self._sock, MOST_BYTES, MOST_SOCKETS)
        except OSError as error:
            raise FirelaneError(
                f"--take-over: the server that has the port does not answer: {error}"
            ) from error
        if not fds:
            raise FirelaneError("--take-over: the server that has the port gave nothing: is it ending?")
        taken: dict[str, list[socket.socket]] = {}
        for name, fd in zip(json.loads(message), fds, strict=True):
            taken.setdefault(name, []).append(socket.socket(fileno=fd))
        return taken

    def tell_serving(self) -> None:
        """It may drain now."""
        with contextlib.suppress(OSError):
            self._sock.sendall(SERVING)
        self.close()

    def close(self) -> None:
        self._sock.close()


@contextlib.contextmanager
def _address(path: Path) -> Generator[str]:
    """A name for the socket that is short enough: Linux has such for a directory that is open."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield str(path)
        return
    if sys.platform != "linux":
        raise OSError("the name is too long for a Unix socket")
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
