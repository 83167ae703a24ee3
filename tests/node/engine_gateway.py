"""The gateway's end of a real engine process on the null backend, under its supervisor."""

from __future__ import annotations

import asyncio
import json
import socket
import time

from firelane.engine_config import EngineConfig
from firelane.link.framing import FrameReader, encode
from firelane.node.engine_process import start_engine
from firelane.node.memory_groups import NO_GROUPS
from firelane.node.supervisor import EngineHealth, EnginePlace, EngineSupervisor, RestartPolicy
from firelane.wire.frames import (
    FromEngine,
    NewRequest,
    Ready,
    Sampling,
    StepFrame,
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


def engine_config(tmp_path):
    """Write a small model; return its config on the null backend."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return EngineConfig(model_dir=tmp_path, cache_dir=tmp_path / "cache", backend="null", max_num_seqs=8)


class Gateway:
    """The other end: collects frames, and lets a test wait for what it needs."""

    def __init__(self, config, policy=POLICY, group=NO_GROUPS, start=start_engine):
        self.sockets: asyncio.Queue[socket.socket] = asyncio.Queue()
        self.exits = []
        self.health = EngineHealth()
        self.given_up: asyncio.Future = asyncio.get_running_loop().create_future()
        self.supervisor = EngineSupervisor(
            config,
            self._take,
            on_exit=self.exits.append,
            on_given_up=self.given_up.set_result,
            policy=policy,
            place=EnginePlace(group, start),
            health=lambda: self.health,
        )

    async def _take(self, sock):
        self.health = EngineHealth()
        await self.sockets.put(sock)

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
        self.health = EngineHealth(time.monotonic())
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
            tokens += [t for i, t, _ in frame.each_token() if i == request_id]
            for finished in frame.finished:
                if finished.id == request_id:
                    return tokens, finished.reason
        return tokens, None


def request(request_id, **sampling):
    return NewRequest(
        id=request_id, prompt=b"\1\0\0\0" * 5, sampling=Sampling(**{"max_tokens": 6} | sampling)
    )
