"""A port's way from a server to its successor, with successors that do not come."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from firelane.errors import FirelaneError
from firelane.node.handover import TAKE, HandoverPoint, Predecessor, socket_path


class Server:
    """An owner of one listening socket."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.resumed, self.ended = asyncio.Event(), asyncio.Event()

    async def release(self) -> dict[str, list[socket.socket]]:
        return {"http": [self.listener.dup()], "metrics": []}

    async def resume(self, sockets) -> None:
        for sock in sockets["http"]:
            sock.close()
        self.resumed.set()

    def succeeded(self) -> None:
        self.ended.set()


def scene(play: Callable[[Server, Path], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def run() -> None:
        server, path = Server(), socket_path(folder / "run", "127.0.0.1", 80)
        point = HandoverPoint(path, server)
        point.open()
        with server.listener:
            await play(server, path)
        point.close()
        point.close()

    asyncio.run(asyncio.wait_for(run(), 120))


def asking(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return sock


def test_a_successor_accepts_what_waits_in_the_queue(tmp_path: Path) -> None:
    async def play(server: Server, path: Path) -> None:
        assert path.parent.stat().st_mode & 0o777 == 0o700
        client = socket.create_connection(server.listener.getsockname())
        predecessor = Predecessor.find(path)
        assert predecessor is not None
        taken = await asyncio.to_thread(predecessor.take)
        assert list(taken) == ["http"]
        with taken["http"][0] as listener, client:
            listener.accept()[0].close()
            assert not server.ended.is_set()
            predecessor.tell_serving()
            await server.ended.wait()
        assert not server.resumed.is_set()
        assert path.exists()  # the name is not this server's any more

    scene(play, tmp_path)


def test_a_successor_that_dies_is_none(tmp_path: Path) -> None:
    async def play(server: Server, path: Path) -> None:
        asking(path).close()
        stranger = asking(path)
        stranger.sendall(b"what?\n")
        assert await asyncio.to_thread(stranger.recv, 1) == b""
        with stranger, asking(path) as dying:
            dying.sendall(TAKE)
            await asyncio.to_thread(dying.recv, 100)
        await server.resumed.wait()
        again = Predecessor.find(path)
        assert again is not None
        taken = await asyncio.to_thread(again.take)
        taken["http"][0].close()
        again.tell_serving()
        await server.ended.wait()

    scene(play, tmp_path)


def test_a_server_that_gives_nothing_is_told(tmp_path: Path) -> None:
    async def play(server: Server, path: Path) -> None:
        async def fail() -> dict[str, list[socket.socket]]:
            raise OSError("no descriptors left")

        server.release = fail
        predecessor = Predecessor.find(path)
        assert predecessor is not None
        with pytest.raises(FirelaneError, match="gave nothing: is it ending"):
            await asyncio.to_thread(predecessor.take)
        predecessor.close()
        asking(path).close()  # others may ask again

    scene(play, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="long names of sockets are Linux's")
def test_what_a_dead_server_left_is_no_server(tmp_path: Path) -> None:
    assert Predecessor.find(tmp_path / "none.sock") is None
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "127.0.0.1-80.sock"))
    assert Predecessor.find(tmp_path / "127.0.0.1-80.sock") is None
    assert Predecessor.find(tmp_path / ("x" * 200) / "none.sock") is None

    async def play() -> None:
        server = Server()
        for folder in (tmp_path, tmp_path / ("x" * 100), tmp_path / ("x" * 300)):
            path = socket_path(folder, "127.0.0.1", 80)
            point = HandoverPoint(path, server)
            point.open()  # in the dead server's place; nowhere, where no file has such a name
            found = Predecessor.find(path)
            if found is not None:
                found.close()
            assert (found is None) == (len(folder.name) > 255)
            point.close()
        server.listener.close()

    asyncio.run(play())
    assert not (tmp_path / "127.0.0.1-80.sock").exists()
