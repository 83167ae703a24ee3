"""CPU time of the gateway alone per output token, behind an engine that costs nothing.

    python benchmarks/gateway_tokens.py [--streams 200] [--tokens 200] [--frame-ms 10] [--profile]
        [--api completions|chat|messages|responses] [--tls]

The gateway runs in this process. A second process plays the engine over a socket pair: one frame with a
token of each stream every `--frame-ms`. A third sends the requests and reads the streams. Printed is the CPU
time of the gateway's process between the first request and the last byte, divided by the tokens; requests
(decode, tokenise, admit) are included, and so are the handshakes of --tls, one a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import resource
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tokenizers
import uvloop
from http_servers import drive_requests
from tokenizers import decoders, models, pre_tokenizers, trainers

from firelane.engine_state import LinkState
from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.recovery import Resume
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.server import Gateway
from firelane.link.framing import FrameReader, encode
from firelane.link.tls import TlsFiles
from firelane.wire.frames import (
    PROTOCOL_VERSION,
    EngineStats,
    Finished,
    Ready,
    Started,
    StepFrame,
    Submit,
    ToEngine,
)

TEXT = "the quick brown fox jumps over the lazy dog and runs away from all the other foxes in the wood, "


CERTIFICATES = Path(__file__).parents[1] / "tests" / "gateway" / "certificates"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
APIS = {
    "completions": ("/v1/completions", {"max_tokens": "tokens", "prompt": "text"}),
    "chat": ("/v1/chat/completions", {"max_tokens": "tokens", "messages": "talk"}),
    "messages": ("/v1/messages", {"max_tokens": "tokens", "messages": "talk"}),
    "responses": ("/v1/responses", {"max_output_tokens": "tokens", "input": "text"}),
}
"""Path and own fields of each API."""


def body_of(api: str, text: str, tokens: int) -> bytes:
    values = {"tokens": tokens, "text": text, "talk": [{"role": "user", "content": text}]}
    own = {name: values[kind] for name, kind in APIS[api][1].items()}
    return json.dumps({"model": "m", "stream": True, "temperature": 0, **own}).encode()


def make_model(path: Path) -> int:
    """A small byte-level BPE tokenizer; returns its size."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet)
    core.train_from_iterator([TEXT * 3], trainer)
    core.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return core.get_vocab_size()


def play_engine(sock: socket.socket, vocab_size: int, streams: int, frame_ms: float) -> None:
    """Sends Ready, waits for all requests, then a frame at a time until all have their tokens."""
    figures = {"block_size": 16, "num_blocks": 1, "weights_bytes": 1, "kv_bytes": 1, "load_s": 0.0}
    sock.sendall(
        encode(
            Ready(
                protocol=PROTOCOL_VERSION,
                pid=os.getpid(),
                model="m",
                vocab_size=vocab_size,
                max_model_len=8192,
                max_num_seqs=streams,
                **figures,
            )
        )
    )
    reader: FrameReader[ToEngine] = FrameReader(ToEngine)
    left: dict[int, int] = {}
    while len(left) < streams:
        for frame in reader.feed(sock.recv(1 << 20)):
            if isinstance(frame, Submit):
                left.update({r.id: r.sampling.max_tokens for r in frame.requests})
    step = 0
    while left:
        time.sleep(frame_ms / 1000)
        ids = list(left)
        tokens = [256 + (step + i) % (vocab_size - 256) for i in ids]
        for i in ids:
            left[i] -= 1
        ended = [Finished(i, "length") for i in ids if not left[i]]
        started = [] if step else [Started(i, 0) for i in ids]
        sock.sendall(encode(StepFrame(step, ids, tokens, started, ended, [], EngineStats())))
        left = {i: n for i, n in left.items() if n}
        step += 1


def play_client(port_pipe: Connection, streams: int, path: bytes, body: bytes, tls: bool) -> None:
    port = port_pipe.recv()
    port_pipe.send(uvloop.run(drive_requests(port, streams, path, body, tls=tls)))


async def run_gateway(
    sock: socket.socket, pipe: Connection, model_dir: Path, tls: TlsFiles | None
) -> tuple[float, int]:
    """(CPU seconds, chunks that the client saw)."""
    link = EngineLink()
    gateway = Gateway(
        GatewayConfig(models=(ModelConfig(model_dir=model_dir, names=("m",)),), port=0, tls=tls),
        [ReplicaSet([link], Resume())],
    )
    await gateway.start()
    await link.attach(sock)
    while link.state is not LinkState.READY:
        await asyncio.sleep(0.01)
    before = process_cpu_s()
    pipe.send(gateway.port)
    chunks = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    used = process_cpu_s() - before
    await gateway.close()
    return used, chunks


def process_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(args: argparse.Namespace) -> float:
    """CPU microseconds per token."""
    body = body_of(args.api, (TEXT * 20)[: args.prompt_chars], args.tokens)
    path = APIS[args.api][0].encode()
    mine, theirs = socket.socketpair()
    pipe, client_pipe = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        vocab_size = make_model(Path(folder))
        fork: Any = multiprocessing.get_context("fork")
        engine = fork.Process(target=play_engine, args=(theirs, vocab_size, args.streams, args.frame_ms))
        client = fork.Process(target=play_client, args=(client_pipe, args.streams, path, body, args.tls))
        engine.start()
        client.start()
        theirs.close()
        files = TlsFiles(cert=CERTIFICATES / "one.pem", key=CERTIFICATES / "one.key") if args.tls else None
        used, chunks = uvloop.run(run_gateway(mine, pipe, Path(folder), files))
        client.join()
        engine.join()
    assert chunks >= args.streams * args.tokens, chunks
    return used / (args.streams * args.tokens) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--prompt-chars", type=int, default=900)
    parser.add_argument("--frame-ms", type=float, default=10.0)
    parser.add_argument("--api", choices=APIS, default="completions")
    parser.add_argument("--tls", action="store_true", help="over HTTPS")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="print where the Python time goes")
    args = parser.parse_args()
    if args.profile:
        import cProfile

        cProfile.runctx("measure(args)", globals(), {"args": args}, sort="tottime")
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{APIS[args.api][0]}: {args.streams} streams of {args.tokens} tokens")
    print(f"a frame every {args.frame_ms:g} ms\n")
    runs = [measure(args) for _ in range(args.repeats)]
    print("| gateway CPU µs per token, best | runs |\n|---|---|")
    print(f"| {min(runs):.1f} | {' '.join(f'{run:.1f}' for run in runs)} |")


if __name__ == "__main__":
    main()
