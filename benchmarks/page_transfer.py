"""Page transfer between two engines of one machine.

    python benchmarks/page_transfer.py bandwidth        pages by shared memory, TCP, and NIXL where it is
                                                        installed, beside memcpy; UCX_TLS=tcp: NIXL over TCP;
                                                        pages of two ranks, which are copied at both ends;
                                                        TCP under the cipher between hosts. --link-gbits N:
                                                        TCP through a link of this rate (as root)
    python benchmarks/page_transfer.py handover MODEL   from the first token of a long prompt at one engine
                                                        to the first step at another one that has its pages

Ratios are of runs in turns, so that what else the machine does meets both.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from shaped_link import ShapedLink

from firelane import env
from firelane.backends.cpu.memory import shared_zeroed
from firelane.backends.cpu.ranks.pages import RankPages
from firelane.contract import HostPages
from firelane.engine_config import EngineConfig
from firelane.kv import KvCache
from firelane.kv.transfer.exported import ExportedPool
from firelane.kv.transfer.native import page_copier
from firelane.kv.transfer.page_copy import PageCopier
from firelane.kv.transfer.peers import PeerTransfer
from firelane.link import packets
from firelane.link.channel import Channel
from firelane.nixl.installed import is_installed
from firelane.nixl.processes import HelperAgents
from firelane.wire import peers
from firelane.wire.frames import FromEngine, NewRequest, Ready, Sampling, StepFrame, Submit
from firelane.wire.peers import PeerConnection, PeerReady

BLOCK = 16
PAGE_BYTES = 512 << 10
"""The bytes of 16 tokens of a Llama of 1 billion parameters."""
PAGES = 250
"""4,000 tokens."""
KEY = b"of the benchmark"
LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [server.fileno()])
"""
SIDE = "--side-of-a-source"


def prompt(tokens: int, first: int = 0) -> np.ndarray:
    return (np.arange(tokens, dtype=np.int32) * 7 + first) % 5000 + 1


def copier() -> PageCopier:
    return page_copier(env.read().cache_dir)


def pool(pages: int) -> tuple[HostPages, KvCache]:
    fd, memory = shared_zeroed(pages * PAGE_BYTES, reserved=False)
    shaped = memory[: pages * PAGE_BYTES].reshape(pages, PAGE_BYTES)
    shaped[:] = np.arange(pages, dtype=np.uint8)[:, None]
    described = HostPages(pages=shaped, layout_id="benchmark", fd=fd)
    return described, KvCache(pages, BLOCK)


def source_process(ends: list[str]) -> None:
    """The other process: all pages have names; serves until its standard input ends. ends: way=descriptor."""
    memory, kv = pool(PAGES)
    transfer = reader(memory, kv, "nixl" if is_installed() else "tcp")
    of_ranks = reader(memory, kv, "ranks")
    tokens, chain = prompt(PAGES * BLOCK), kv.chain(b"")
    tables = kv.share(len(tokens), kv.search.no_hit)
    kv.reserve(tables, kv.search.no_hit)
    kv.publish(tables, chain, tokens, PAGES)
    transfer.prepare()
    sys.stdin.readline()  # the readers are ready, too
    for end in ends:
        way, _, fd = end.partition("=")
        exports = of_ranks if way == "ranks" else transfer
        exports.export(socket.socket(fileno=int(fd)), KEY, ciphers=way == "cipher")
    sys.stdin.read()
    of_ranks.close()
    transfer.close()


def reader(memory: HostPages, kv: KvCache, transport: str) -> PeerTransfer:
    """The transfer of an engine with these pages, which has others' in this way."""
    agents = HelperAgents() if transport == "nixl" else None
    pages, half = memory.pages, PAGE_BYTES // 2
    of_ranks = RankPages([pages[:, :half], pages[:, half:]], memory.layout_id)
    exported = ExportedPool(of_ranks if transport == "ranks" else memory, kv, "benchmark", copier())
    return PeerTransfer(exported, maps=transport not in ("tcp", "cipher") and agents is None, nixl=agents)


def tcp_pair(link: ShapedLink | None) -> tuple[socket.socket, socket.socket]:
    """The reader's end and the source's, which is behind the link where there is one."""
    with socket.create_server(("127.0.0.1", 0)) if link is None else server_behind(link) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


def server_behind(link: ShapedLink) -> socket.socket:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = [sys.executable, "-c", LISTEN, link.address, str(theirs.fileno())]
        subprocess.run([*link.prefix, *words], pass_fds=[theirs.fileno()], check=True)
        return socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0])


def bandwidth(repeats: int, link: ShapedLink | None = None) -> None:
    ends = {
        "shm": socket.socketpair(),
        "tcp": tcp_pair(link),
        "cipher": tcp_pair(link),
        "ranks": socket.socketpair(),
    }
    if is_installed():
        ends["nixl"] = tcp_pair(None)
    fds = {name: theirs.fileno() for name, (_, theirs) in ends.items()}
    words = [f"{name}={fd}" for name, fd in fds.items()]
    process = subprocess.Popen(
        [sys.executable, __file__, SIDE, *words], pass_fds=list(fds.values()), stdin=subprocess.PIPE
    )
    as_two_hosts(process.pid)
    memory, kv = pool(PAGES)
    transfers = {name: reader(memory, kv, name) for name in ends}
    for transfer in transfers.values():
        transfer.prepare()
    process.stdin.write(b"\n")
    process.stdin.flush()
    readers = {}
    for name, (ours, theirs) in ends.items():
        theirs.close()
        readers[name] = transfers[name], transfers[name].attach(ours, KEY)
        expected = "tcp" if name in ("ranks", "cipher") else name
        assert transfers[name].transport(readers[name][1]) == expected
    seconds, busy = in_turns(memory, kv, readers, repeats, process.pid)
    report(memory.pages.nbytes, seconds)
    for name, times in busy.items():
        print(
            f"{name:8s} {min(times) * 1e3:6.1f} ms of processors, both ends; median {median(times) * 1e3:.1f}"
        )
    process.stdin.close()
    process.wait()
    for transfer in transfers.values():
        transfer.close()


def as_two_hosts(other: int) -> None:
    """Each process has cores of its own, as on two hosts: half of them."""
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    if half:
        os.sched_setaffinity(other, cores[:half])
        os.sched_setaffinity(0, cores[half:])


def in_turns(
    memory: HostPages, kv: KvCache, readers: dict[str, tuple[PeerTransfer, str]], repeats: int, other_end: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each copy of all pages, and of processors. other_end: the process of the sources."""
    wanted = kv.search.wanted(kv.chain(b""), prompt(PAGES * BLOCK + 1), PAGES * BLOCK + 1)
    mine = kv.incoming.begin(wanted, PAGES)
    other = shared_zeroed(memory.pages.nbytes, reserved=False)[1][: memory.pages.nbytes].reshape(PAGES, -1)
    seconds: dict[str, list[float]] = {name: [] for name in ("memcpy", *readers)}
    busy: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(repeats + 1):
        began_s = time.perf_counter()
        for page in np.random.default_rng(0).permutation(PAGES):
            np.copyto(other[page], memory.pages[page])
        seconds["memcpy"].append(time.perf_counter() - began_s)
        for name, (transfer, peer) in readers.items():
            before_s = processor_s(os.getpid()) + processor_s(other_end)
            transfer.pull(peer, wanted, mine, time.monotonic() + 60)
            while not (settled := transfer.poll()):
                time.sleep(0.0002)
            assert settled[0].outcome == "ok", settled[0]
            seconds[name].append(settled[0].seconds)
            busy[name].append(processor_s(os.getpid()) + processor_s(other_end) - before_s)
    for times in seconds.values():
        del times[0]  # memory that was not touched before
    return seconds, busy


def processor_s(pid: int) -> float:
    """Processor time of a process's threads."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def report(nbytes: int, seconds: dict[str, list[float]]) -> None:
    kept = [plain / under for plain, under in zip(seconds["tcp"], seconds["cipher"], strict=True)]
    print(f"rate of TCP that its cipher keeps: median {median(kept):.2f}, {min(kept):.2f} to {max(kept):.2f}")
    for name, times in seconds.items():
        ratio = median(m / t for m, t in zip(seconds["memcpy"], times, strict=True))
        print(
            f"{name:8s} {nbytes / median(times) / 1e9:6.2f} GB/s   {ratio:5.2f} of memcpy   "
            f"{median(times) * 1e3:7.1f} ms"
        )


class Engine:
    """A process, its frames and its peers."""

    def __init__(self, config: EngineConfig) -> None:
        ours, theirs = socket.socketpair()
        self.peers, seat = packets.pair()
        command = [sys.executable, "-m", "firelane.engine", str(theirs.fileno()), config.to_json()]
        self.process = subprocess.Popen(
            [*command, f"peers={seat.fileno()}"], pass_fds=[theirs.fileno(), seat.fileno()]
        )
        theirs.close()
        seat.close()
        self.frames: Channel[FromEngine] = Channel(ours, FromEngine)

    def until_ready(self) -> Ready:
        here = peers.receive(self.peers)
        assert here is not None
        assert isinstance(here[0], PeerReady)
        return next(frame for frame in self.each() if isinstance(frame, Ready))

    def each(self):
        while True:
            yield from self.frames.receive(None)

    def steps(self):
        return (frame for frame in self.each() if isinstance(frame, StepFrame))


def handover(model: Path, tokens: int, repeats: int, backend: str) -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    half = len(cores) // 2 or 1
    config = EngineConfig(
        model_dir=model,
        cache_dir=env.read().cache_dir,
        backend=backend,
        max_model_len=tokens + 64,
        max_num_seqs=4,
        kv_cache_bytes=1 << 30,
        kv_cache_memory="shared",
        replicas=2,
    )
    shares = (("prefill", cores[:half]), ("decode", cores[half:] or cores))
    source, reader = (Engine(msgspec.structs.replace(config, role=r, cores=c)) for r, c in shares)
    engine_id = source.until_ready().engine_id
    reader.until_ready()
    ours, theirs = socket.socketpair()
    packets.send(source.peers, PeerConnection("source", ""), (ours.fileno(),))
    packets.send(reader.peers, PeerConnection("reader", engine_id), (theirs.fileno(),))
    rows = [one_handover(source, reader, engine_id, tokens, i) for i in range(repeats)]
    for key in rows[0]:
        values = [row[key] for row in rows]
        print(f"{key:24s} median {median(values):9.2f}   all {[round(v, 2) for v in values]}")
    for engine in (source, reader):
        engine.frames.close()
        engine.process.wait()


def one_handover(source: Engine, reader: Engine, engine_id: str, tokens: int, index: int) -> dict[str, float]:
    """In milliseconds. The first token is there when its frame is; the other engine starts when it gives the
    sequence its slot."""
    given = prompt(tokens, first=index * 11)
    request = NewRequest(id=index + 1, prompt=given.tobytes(), sampling=Sampling(seed=1, max_tokens=1))
    began_s = time.monotonic()
    reader.frames.send(Submit([msgspec.structs.replace(request, pages_at=engine_id, prefetch=True)]))
    source.frames.send(Submit([request]))
    first = next(frame for frame in source.steps() if frame.tokens)
    drawn_s = time.monotonic()
    output = np.array(first.tokens, np.int32).tobytes()
    going_on = NewRequest(
        id=index + 1,
        prompt=request.prompt + output,
        output_start=tokens,
        sampling=Sampling(seed=1, max_tokens=4),
        pages_at=engine_id,
    )
    reader.frames.send(Submit([going_on]))
    frame = next(frame for frame in reader.steps() if frame.started)
    came_s = time.monotonic()
    started = frame.started[0]
    assert started.cached_tokens == tokens // BLOCK * BLOCK, started
    while not frame.finished:
        frame = next(reader.steps())
    return {
        "prefill_ms": (drawn_s - began_s) * 1e3,
        "decode_start_ms": (came_s - started.age_s - drawn_s) * 1e3,
        "next_token_ms": (came_s - drawn_s) * 1e3,
    }


def main() -> None:
    if SIDE in sys.argv:
        source_process(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["bandwidth", "handover"])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--link-gbits", type=float, metavar="N")
    arguments = parser.parse_args()
    if arguments.what == "bandwidth" and arguments.link_gbits is None:
        bandwidth(arguments.repeats)
    elif arguments.what == "bandwidth":
        with ShapedLink() as link:
            link.limit(arguments.link_gbits * 1e9 / 8)
            bandwidth(arguments.repeats, link)
    else:
        handover(arguments.model, arguments.tokens, arguments.repeats, arguments.backend)


if __name__ == "__main__":
    main()
