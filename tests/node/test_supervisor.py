"""Real engine processes on the null backend."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from firelane.engine_config import EngineConfig
from firelane.errors import MachineError
from firelane.node.supervisor import EngineSupervisor, RestartPolicy
from firelane.wire.codec import FrameReader, encode
from firelane.wire.frames import (
    Abort,
    Beat,
    Drain,
    Failed,
    FromEngine,
    NewRequest,
    Ready,
    Rejected,
    Sampling,
    StepFrame,
    Submit,
)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}
POLICY = RestartPolicy(first_delay_s=0.01, max_delay_s=0.02, max_deaths=3)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return EngineConfig(model_dir=tmp_path, cache_dir=tmp_path / "cache", backend="null", max_num_seqs=8)


class Gateway:
    """The other end: collects frames, and lets a test wait for what it needs."""

    def __init__(self, config, policy=POLICY):
        self.sockets: asyncio.Queue[socket.socket] = asyncio.Queue()
        self.exits = []
        self.given_up: asyncio.Future = asyncio.get_running_loop().create_future()
        self.supervisor = EngineSupervisor(
            config,
            self.sockets.put,
            on_exit=self.exits.append,
            on_given_up=self.given_up.set_result,
            policy=policy,
        )

    async def __aenter__(self):
        await self.supervisor.start()
        return self

    async def __aexit__(self, *_):
        await self.supervisor.stop(0.0)
        if hasattr(self, "writer"):
            self.writer.close()
        while not self.sockets.empty():
            self.sockets.get_nowait().close()

    async def connect(self):
        if hasattr(self, "writer"):
            self.writer.close()
        sock = await self.sockets.get()
        self.reader, self.writer = await asyncio.open_unix_connection(sock=sock)
        self.frames = FrameReader(FromEngine)
        self.pending = []
        ready = await self.next(Ready)
        self.supervisor.mark_ready()
        return ready

    def send(self, frame):
        self.writer.write(encode(frame))

    async def next(self, kind):
        """The next frame of this kind; others are passed over. None at the end of the stream."""
        while True:
            while self.pending:
                frame = self.pending.pop(0)
                if isinstance(frame, kind):
                    return frame
            try:
                data = await self.reader.read(1 << 16)
            except ConnectionResetError:  # the engine ended with frames of ours unread
                return None
            if not data:
                return None
            self.pending += self.frames.feed(data)

    async def tokens_of(self, request_id):
        tokens = []
        while frame := await self.next(StepFrame):
            tokens += [t for i, t in zip(frame.ids, frame.tokens, strict=True) if i == request_id]
            for finished in frame.finished:
                if finished.id == request_id:
                    return tokens, finished.reason
        return tokens, None


def request(request_id, **sampling):
    return NewRequest(
        id=request_id, prompt=b"\1\0\0\0" * 5, sampling=Sampling(**{"max_tokens": 6} | sampling)
    )


def test_no_process_for_the_first_engine_is_one_line(config, monkeypatch):
    def popen(*_, **__):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async def scenario():
        monkeypatch.setattr(subprocess, "Popen", popen)
        gateway = Gateway(config)
        with pytest.raises(MachineError, match=r"^no process for the engine \(.+\): free memory"):
            await gateway.supervisor.start()
        await gateway.supervisor.stop(0.0)

    asyncio.run(scenario())


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


def test_stop_kills_an_engine_that_does_not_react(config):
    async def scenario():
        async with Gateway(config) as gateway:
            ready = await gateway.connect()
            os.kill(ready.pid, signal.SIGSTOP)
            await gateway.supervisor.stop(0.0, patience_s=0.05)
            assert gateway.supervisor.pid is None

    asyncio.run(scenario())


def test_killed_engine_is_started_again(config):
    async def scenario():
        async with Gateway(config) as gateway:
            first = await gateway.connect()
            os.kill(first.pid, signal.SIGKILL)
            second = await gateway.connect()
            assert second.pid != first.pid
            assert "killed by SIGKILL" in str(gateway.exits[0])
            assert gateway.supervisor.restarts == 1
            gateway.send(Submit([request(1)]))
            assert (await gateway.tokens_of(1))[1] == "length"

    asyncio.run(scenario())


def test_engine_is_started_again_when_the_system_had_no_room_for_it(config, monkeypatch):
    launch, refusals = subprocess.Popen, iter([True, True, False])

    def popen(*arguments, **options):
        if next(refusals):
            raise BlockingIOError("no more processes")
        return launch(*arguments, **options)

    async def scenario():
        async with Gateway(config) as gateway:
            first = await gateway.connect()
            monkeypatch.setattr(subprocess, "Popen", popen)
            os.kill(first.pid, signal.SIGKILL)
            assert (await gateway.connect()).pid == gateway.supervisor.pid
            assert gateway.supervisor.restarts == 1

    asyncio.run(scenario())


def test_what_an_engine_has_started_ends_with_it(config, monkeypatch, tmp_path):
    script = tmp_path / "engine"
    script.write_text(f"#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/child\nwait\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))

    async def scenario():
        async with Gateway(config) as gateway:
            while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
                await asyncio.sleep(0.002)
            os.kill(gateway.supervisor.pid, signal.SIGKILL)
            await gateway.given_up
            child = int((tmp_path / "child").read_text())
            while is_running(child):
                await asyncio.sleep(0.002)

    asyncio.run(asyncio.wait_for(scenario(), 120))


def is_running(pid):
    """Whether a process is there and not a zombie that nobody has asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_crash_loop_is_bounded(config):
    async def scenario():
        async with Gateway(config) as gateway:
            while not gateway.given_up.done():
                if not gateway.sockets.empty():
                    await gateway.connect()
                    os.kill(gateway.supervisor.pid, signal.SIGKILL)
                await asyncio.wait(
                    [gateway.given_up, get := asyncio.ensure_future(gateway.sockets.get())],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if get.done():
                    gateway.sockets.put_nowait(get.result())
                get.cancel()
            assert len(gateway.exits) == 3

    asyncio.run(scenario())


def test_engines_that_have_served_are_replaced_at_once_and_without_end(config):
    async def scenario():
        async with Gateway(config) as gateway:
            for _ in range(5):
                await gateway.connect()
                gateway.supervisor.mark_served()
                gateway.supervisor.kill()
            await gateway.connect()
            assert gateway.supervisor.restarts == 5
            assert not gateway.given_up.done()

    asyncio.run(scenario())


def test_it_can_be_started_again_after_a_stop(config):
    async def scenario():
        async with Gateway(config) as gateway:
            first = await gateway.connect()
            await gateway.supervisor.restart(0.0)
            second = await gateway.connect()
            assert first.pid != second.pid
            assert gateway.exits == []

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
        ({"max_num_seqs": 1 << 44, "max_num_batched_tokens": 1 << 44}, "unable to allocate", 1),
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
