"""CPU time of HTTP servers per streamed chunk: which one can carry the gateway?

    python benchmarks/http_servers.py [--streams 200] [--frames 200] [--frame-ms 20]

Each server answers `--streams` requests at once with server-sent events. A timer in the server's
process plays the engine: every `--frame-ms` it has one chunk for each stream, as a step of a batch has.
Printed is the CPU time of the server's process tree over the whole run, per chunk, and the ratio to the
bare protocol. The client runs in a process of its own and is not counted. Servers that are not installed
are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import socket
import ssl
import subprocess
import sys
import time
from importlib import metadata, util
from pathlib import Path
from typing import Any

CHUNK = (
    b'data: {"id":"cmpl-0123456789abcdef01234567","object":"text_completion","created":1700000000,'
    b'"model":"m","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]}\n\n'
)
SERVERS = ("bare", "uvicorn-asgi", "granian-asgi", "granian-rsgi")
NEEDS = {"bare": "httptools", "uvicorn-asgi": "uvicorn", "granian-asgi": "granian", "granian-rsgi": "granian"}
SSE_HEADERS = [("content-type", "text/event-stream")]


class Ticker:
    """Plays the engine: calls every sink once a frame, for a fixed number of frames; None ends a stream."""

    def __init__(self, frames: int, frame_s: float, streams: int) -> None:
        self.frames, self.frame_s, self.streams = frames, frame_s, streams
        self.sinks: list[Any] = []

    def join(self, sink: Any) -> None:
        self.sinks.append(sink)
        if len(self.sinks) == self.streams:
            asyncio.get_running_loop().call_later(self.frame_s, self.tick, self.frames)

    def tick(self, left: int) -> None:
        for sink in self.sinks:
            sink(CHUNK if left else None)
        if left:
            asyncio.get_running_loop().call_later(self.frame_s, self.tick, left - 1)
        else:
            self.sinks.clear()


def ticker() -> Ticker:
    frames, frame_ms, streams = (float(os.environ[k]) for k in ("BENCH_FRAMES", "BENCH_MS", "BENCH_STREAMS"))
    return Ticker(int(frames), frame_ms / 1000, int(streams))


def asgi_app() -> Any:
    engine = ticker()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("no lifespan")
        await receive()
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        engine.join(chunks.put_nowait)
        headers = [(k.encode(), v.encode()) for k, v in SSE_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while (chunk := await chunks.get()) is not None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


def rsgi_app() -> Any:
    engine = ticker()

    async def app(scope: Any, protocol: Any) -> None:  # noqa: ARG001
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        engine.join(chunks.put_nowait)
        transport = protocol.response_stream(200, SSE_HEADERS)
        while (chunk := await chunks.get()) is not None:
            await transport.send_bytes(chunk)

    return app


class BareProtocol(asyncio.Protocol):
    """Does what the gateway does: it parses with httptools, and writes from the engine's callback."""

    def __init__(self, engine: Ticker) -> None:
        import httptools

        self.engine = engine
        self.parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self.engine.join(self.chunk)

    def chunk(self, data: bytes | None) -> None:
        if data is None:
            self.transport.write(b"0\r\n\r\n")
        else:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def serve(name: str, port: int) -> None:
    """Run one server until it is killed."""
    if name == "bare":
        import uvloop

        async def bare() -> None:
            engine = ticker()
            loop = asyncio.get_running_loop()
            await loop.create_server(lambda: BareProtocol(engine), "127.0.0.1", port)
            await asyncio.Event().wait()

        uvloop.run(bare())
    elif name == "uvicorn-asgi":
        import uvicorn

        uvicorn.run(asgi_app(), port=port, loop="uvloop", http="httptools", lifespan="off", log_level="error")
    else:
        from granian import Granian

        kind = name.removeprefix("granian-")
        target = f"{Path(__file__).stem}:{kind}_app"
        Granian(target, port=port, interface=kind, loop="uvloop", factory=True, log_enabled=False).serve()


class Client(asyncio.Protocol):
    """Sends one request and counts its chunks until the stream ends."""

    def __init__(self, done: asyncio.Future[int], request: bytes) -> None:
        self.done, self.request, self.count, self.tail = done, request, 0, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.count += data.count(b"data: ")
        self.tail = (self.tail + data)[-7:]
        if self.tail.endswith(b"0\r\n\r\n") and not self.done.done():
            self.done.set_result(self.count)
            self.transport.close()


async def drive_requests(port: int, streams: int, path: bytes, body: bytes, *, tls: bool = False) -> int:
    """Chunks received over all streams of `streams` equal requests."""
    trusting = ssl.create_default_context() if tls else None
    if trusting is not None:
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    loop = asyncio.get_running_loop()
    head = (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    request = head % (path, len(body)) + body
    ends: list[asyncio.Future[int]] = [loop.create_future() for _ in range(streams)]
    for end in ends:
        await loop.create_connection(lambda end=end: Client(end, request), "127.0.0.1", port, ssl=trusting)
    return sum(await asyncio.gather(*ends))


def tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(p for child in children for p in tree(int(child)))]


def cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit("a server did not start within 20 s")


def measure(name: str, args: argparse.Namespace) -> float:
    """CPU microseconds per chunk of one server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    env |= {
        "BENCH_FRAMES": str(args.frames),
        "BENCH_MS": str(args.frame_ms),
        "BENCH_STREAMS": str(args.streams),
    }
    server = subprocess.Popen([sys.executable, __file__, "--server", name, "--port", str(port)], env=env)
    try:
        wait_for(port)
        time.sleep(0.3)
        pids = tree(server.pid)
        before = cpu_s(pids)
        chunks = asyncio.run(drive_requests(port, args.streams, b"/", b'{"prompt":"x"}'))
        used = cpu_s(pids) - before
    finally:
        server.terminate()
        server.wait(10)
    assert chunks == args.streams * args.frames, (name, chunks)
    return used / chunks * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--frame-ms", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--server", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.server:
        serve(args.server, args.port)
        return
    names = [name for name in SERVERS if util.find_spec(NEEDS[name])]
    packages = ("httptools", "uvloop", "uvicorn", "granian")
    versions = [f"{p} {metadata.version(p)}" for p in packages if util.find_spec(p)]
    python, cores = platform.python_version(), os.cpu_count()
    print(f"{platform.machine()}, {cores} cores, Python {python}, {', '.join(versions)}")
    print(
        f"{args.streams} streams, {args.frames} frames of {args.frame_ms:g} ms, chunk of {len(CHUNK)} bytes\n"
    )
    print("| server | CPU µs per chunk, best of runs | runs | ratio to bare |\n|---|---|---|---|")
    bare = 0.0
    for name in names:
        runs = [measure(name, args) for _ in range(args.repeats)]
        bare = bare or min(runs)
        shown = " ".join(f"{run:.1f}" for run in runs)
        print(f"| {name} | {min(runs):.1f} | {shown} | {min(runs) / bare:.1f} |", flush=True)


if __name__ == "__main__":
    main()
