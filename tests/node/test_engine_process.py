"""An engine process answers its socket, and signals, from its start to its end."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec
import pytest

from firelane.link.framing import FrameReader, encode
from firelane.wire.frames import (
    Abort,
    Asleep,
    Awake,
    Beat,
    Drain,
    Failed,
    FromEngine,
    Ready,
    Rejected,
    Sleep,
    StepFrame,
    Submit,
    Wake,
)
from tests.node.engine_gateway import Gateway, engine_config, request


@pytest.fixture
def config(tmp_path):
    return engine_config(tmp_path)


def test_serves_and_drains(config):
    async def scenario():
        async with Gateway(config) as gateway:
            ready = await gateway.connect()
            assert ready.pid == gateway.supervisor.pid
            assert (ready.vocab_size, ready.max_model_len, ready.max_num_seqs) == (512, 256, 8)
            gateway.send(Submit([request(1), request(2, seed=1)]))
            gateway.send(Drain(5.0))
            gateway.send(Submit([request(3)]))
            tokens, reason = await gateway.tokens_of(1)
            assert (len(tokens), reason) == (6, "length")
            rejected = await gateway.next(Rejected)
            assert rejected is None or "draining" in rejected.message
            await gateway.supervisor.stop(60.0)
            assert gateway.exits == []

    asyncio.run(scenario())


def test_sleeps_when_nothing_runs_and_wakes_when_it_is_told_or_asked(config):
    async def scenario():
        async with Gateway(config) as gateway:
            assert (await gateway.connect()).can_sleep
            gateway.send(Submit([request(1)]))
            gateway.send(Sleep())
            before, _ = await gateway.tokens_of(1)
            assert (await gateway.next(Asleep)).resident_bytes > 0
            gateway.send(Wake())
            assert (await gateway.next(Awake)).took_s >= 0
            gateway.send(Sleep())
            await gateway.next(Asleep)
            gateway.send(Submit([request(2)]))
            await gateway.next(Awake)
            after, reason = await gateway.tokens_of(2)
            assert (after, reason) == (before, "length")
            gateway.send(Sleep())
            gateway.send(Drain(0.0))
            await gateway.supervisor.stop(60.0)
            assert gateway.exits == []

    asyncio.run(scenario())


def test_drain_aborts_what_takes_too_long(config):
    async def scenario():
        async with Gateway(config) as gateway:
            await gateway.connect()
            gateway.writer.write(encode(Submit([request(1, max_tokens=200)])) + encode(Drain(0.0)))
            assert (await gateway.tokens_of(1))[1] == "abort"
            await gateway.supervisor.stop(60.0)
            assert gateway.exits == []

    asyncio.run(scenario())


def test_terminate_while_busy_ends_soon_and_reports(config):
    async def scenario():
        async with Gateway(config) as gateway:
            ready = await gateway.connect()
            for i in range(40):
                gateway.send(Submit([request(i, max_tokens=240)]))
            os.kill(ready.pid, signal.SIGTERM)
            while not gateway.exits:
                await gateway.next(StepFrame)
                await asyncio.sleep(0)
            assert gateway.exits[0].return_code == 0

    asyncio.run(scenario())


def test_an_engine_beats_while_it_loads_and_while_it_rests(config):
    async def scenario():
        async with Gateway(config) as gateway:
            ready = await gateway.connect()
            assert len(ready.identity) == 32
            assert (await gateway.next(Beat)).age_s == 0.0

    asyncio.run(scenario())


def test_engines_of_one_model_have_one_identity(config):
    async def scenario():
        async with Gateway(config) as one, Gateway(config) as other:
            assert (await one.connect()).identity == (await other.connect()).identity

    asyncio.run(scenario())


def test_load_failure_gives_up_with_its_message(config, tmp_path):
    (tmp_path / "config.json").write_text("{")

    async def scenario():
        async with Gateway(config) as gateway:
            sock = await gateway.sockets.get()
            gateway.reader, gateway.writer = await asyncio.open_unix_connection(sock=sock)
            gateway.frames, gateway.pending = FrameReader(FromEngine), []
            failed = await gateway.next(Failed)
            assert "config.json: not valid JSON" in failed.message
            ended = await gateway.given_up
            assert (ended.exit_code, failed.exit_code) == (1, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changes", "message", "exit_code"),
    [
        ({"max_model_len": 257}, "--max-model-len 257: the model takes 256 tokens", 2),
        ({"max_num_seqs": (1 << 31) - 1, "max_num_batched_tokens": (1 << 31) - 1}, "unable to allocate", 1),
    ],
    ids=["context", "sequences"],
)
def test_sizes_that_cannot_be_are_refused_before_it_says_ready(config, changes, message, exit_code):
    async def scenario():
        async with Gateway(msgspec.structs.replace(config, **changes)) as gateway:
            sock = await gateway.sockets.get()
            gateway.reader, gateway.writer = await asyncio.open_unix_connection(sock=sock)
            gateway.frames, gateway.pending = FrameReader(FromEngine), []
            failed = await gateway.next(Ready | Failed)
            assert isinstance(failed, Failed)
            assert message in failed.message
            assert failed.exit_code == (await gateway.given_up).exit_code == exit_code

    asyncio.run(scenario())


def test_garbage_on_the_socket_ends_the_engine_with_a_message(config):
    async def scenario():
        async with Gateway(config) as gateway:
            await gateway.connect()
            gateway.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            failed = await gateway.next(Failed)
            assert "over the limit" in failed.message
            await gateway.connect()

    asyncio.run(scenario())


def test_engine_ends_when_the_gateway_goes(config):
    async def scenario():
        async with Gateway(config) as gateway:
            await gateway.connect()
            gateway.writer.close()
            await gateway.writer.wait_closed()
            while not gateway.exits:
                await asyncio.sleep(0.005)
            assert gateway.exits[0].return_code == 0

    asyncio.run(scenario())


def test_interrupt_is_left_to_the_parent_and_terminate_ends_it(config):
    async def scenario():
        async with Gateway(config) as gateway:
            ready = await gateway.connect()
            os.kill(ready.pid, signal.SIGINT)
            gateway.send(Submit([request(1)]))
            assert (await gateway.tokens_of(1))[1] == "length"
            os.kill(ready.pid, signal.SIGTERM)
            assert await gateway.next(StepFrame) is None
            while not gateway.exits:
                await asyncio.sleep(0.005)
            assert gateway.exits[0].return_code == 0

    asyncio.run(scenario())


def test_abort_over_the_wire(config):
    async def scenario():
        async with Gateway(config) as gateway:
            await gateway.connect()
            gateway.send(Submit([request(1, max_tokens=200), request(2)]))
            gateway.send(Abort([1, 77]))
            assert (await gateway.tokens_of(1))[1] == "abort"

    asyncio.run(scenario())
