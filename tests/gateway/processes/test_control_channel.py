"""Messages between processes, with descriptors."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.gateway.processes.config_text import from_text, to_text
from firelane.gateway.processes.control import ControlChannel, Engine, Figures, Listening, Message, Relay


class End:
    def __init__(self, sock: socket.socket) -> None:
        self.got: asyncio.Queue[tuple[Message, list[int]] | None] = asyncio.Queue()
        self.channel = ControlChannel(
            sock, lambda *news: self.got.put_nowait(news), lambda: self.got.put_nowait(None)
        )


@pytest.fixture
def run():
    def run(work) -> None:
        async def scene() -> None:
            ends = [End(sock) for sock in socket.socketpair()]
            try:
                await work(*ends)
            finally:
                for end in ends:
                    end.channel.close()

        asyncio.run(scene())

    return run


def test_descriptors_come_with_their_message(run) -> None:
    async def work(one: End, other: End) -> None:
        pipes = [os.pipe() for _ in range(2)]
        one.channel.send(Listening())
        for index, (_, write) in enumerate(pipes):
            one.channel.send(Engine(index, "m", "0"), [write])
            os.close(write)
        assert await other.got.get() == (Listening(), [])
        for index, (read, _) in enumerate(pipes):
            message, (fd,) = await other.got.get()
            assert message == Engine(index, "m", "0")
            os.write(fd, b"%d" % index)
            os.close(fd)
            assert os.read(read, 8) == b"%d" % index
            os.close(read)

    run(work)


def test_what_the_other_end_does_not_read_yet_is_kept(run) -> None:
    dump = [("name" * 100, ["label"], {str(place): float(place) for place in range(20_000)})]

    async def work(one: End, other: End) -> None:
        read, write = os.pipe()
        one.channel.send(Figures(1, dump))
        one.channel.send(Figures(2, dump))
        one.channel.send(Relay(), [write])
        os.close(write)
        assert (await other.got.get())[0] == Figures(1, dump)
        assert (await other.got.get())[0] == Figures(2, dump)
        message, (fd,) = await other.got.get()
        assert message == Relay()
        await one.channel.flush(1.0)
        os.close(fd)
        assert os.read(read, 1) == b""
        os.close(read)

    run(work)


def test_the_end_is_told_once_after_the_last_words(run) -> None:
    async def work(one: End, other: End) -> None:
        one.channel.send(Listening())
        one.channel.close()
        other.channel.read_rest()
        assert other.got.get_nowait() == (Listening(), [])
        assert other.got.get_nowait() is None
        other.channel.send(Listening())  # to nobody
        assert other.got.empty()

    run(work)


def test_a_config_arrives_as_it_was(tmp_path) -> None:
    config = GatewayConfig(
        models=(ModelConfig(model_dir=tmp_path, names=("a", "b"), aliases=(("x", "a"),), tenants=("t",)),),
        api_keys=tmp_path / "keys",
        gateways=3,
        max_queue=7,
        metrics_port=None,
    )
    assert from_text(to_text(config), GatewayConfig) == config
