"""Sums of two ranks alone: a program of nothing else, by two processes with a core each."""

from __future__ import annotations

import os
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane import env
from firelane.backends.cpu.codegen.compile import KernelCompiler
from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.link import LinkSizes, RankLink, RankWires
from firelane.backends.cpu.native import ProgramLibrary
from firelane.contract import SlotState, StepInputs, StepLimits, shared_memory
from firelane.native.machine import choose_isa, cpu_identity
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout
from firelane.program.ops import AllReduce, Embed
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import DType, Rows, Value, Weight

SUMS, VOCAB, STEPS = 200, 64, 20
RANKS = HostLayout(ranks=RankLayout(tp=2))


@dataclass
class Zeros:
    """Weights of zeros (executor.Weights)."""

    data: NDArray[np.uint8]
    nbytes: int = 0
    names: list[str] = field(default_factory=list[str])

    def address(self, name: str) -> int:
        del name
        return -(-self.data.ctypes.data // 64) * 64

    def panel_table(self, name: str) -> NDArray[np.uint64]:
        raise KeyError(name)

    def close(self) -> None:
        return


def sums_program(width: int) -> Program:
    """An embedding, and sums of what it and each sum before gives."""
    shape = (VOCAB, width)
    table = Weight(name="table", shape=shape, dtype=DType.F32, pieces=(Piece(tensor="table", shape=shape),))
    values = [Value(name=f"x{i}", width=width, dtype=DType.F32, rows=Rows.TOKEN) for i in range(SUMS + 1)]
    sums = [AllReduce(x=values[i], ranks=2, out=values[i + 1]) for i in range(SUMS)]
    ops = (Embed(table=table, out=values[0]), *sums)
    return Program(name="sums", vocab_size=VOCAB, max_model_len=64, ops=ops)


def sum_seconds(width: int, *, rounds: int, over: str = "memory") -> list[float]:
    """Sum a row of so many numbers; return the seconds of each round's sum, barrier included. over: shared
    "memory", or "tcp" on this machine's loopback, as between two hosts."""
    cores = sorted(os.sched_getaffinity(0))
    limits = StepLimits(
        max_num_seqs=1,
        max_num_batched_tokens=1,
        max_output_rows=1,
        max_model_len=64,
        block_size=16,
        num_blocks=1,
        spans=(),
    )
    layout = Layout(program=sums_program(width), limits=limits, isa=choose_isa("", cpu_identity()))
    with tempfile.TemporaryDirectory() as cache:
        if over == "tcp":
            return _tcp_seconds(KernelCompiler.find(env.read(), Path(cache)).build(layout), layout, rounds)
        library = KernelCompiler.find(env.read(), Path(cache)).build(layout)
        sizes, slots = LinkSizes.of([layout]), shared_memory()
        link = RankLink(layout, RANKS, 0, sizes, cores=len(cores))
        state = SlotState.allocate(limits, VOCAB, fd=slots)
        child = os.fork()
        if not child:
            os.sched_setaffinity(0, cores[1:2])
            theirs = RankLink(layout, RANKS, 1, sizes, cores=len(cores), fd=link.fd)
            _executor(library, layout, theirs, SlotState.attach(slots, limits, VOCAB)).follow()
            os._exit(0)
        os.sched_setaffinity(0, cores[:1])
        executor = _executor(library, layout, link, state)
        os.sched_setaffinity(0, cores)
        try:
            return [_round(executor, link, limits) for _ in range(rounds)]
        finally:
            executor.end_group()
            os.waitpid(child, 0)
            executor.release()


def _tcp_seconds(library: Path, layout: Layout, rounds: int) -> list[float]:
    """Both processes run the same steps, each with memory of its own."""
    cores, limits = sorted(os.sched_getaffinity(0)), layout.limits
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends = [socket.create_connection(server.getsockname()), server.accept()[0]]
    for end in ends:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    child = os.fork()
    rank = int(child == 0)
    os.sched_setaffinity(0, cores[rank : rank + 1])
    hosts, wires = HostLayout(ranks=RANKS.ranks, count=2), RankWires(peers={1 - rank: ends[rank].fileno()})
    link = RankLink(layout, hosts, rank, LinkSizes.of([layout]), cores=1, wires=wires)
    executor = _executor(library, layout, link, SlotState.allocate(limits, VOCAB))
    found = [_round(executor, link, limits) for _ in range(rounds)]
    if not child:
        os._exit(0)
    os.sched_setaffinity(0, cores)
    os.waitpid(child, 0)
    executor.release()
    return found


def _executor(library: Path, layout: Layout, link: RankLink, state: SlotState) -> CpuExecutor:
    weights = Zeros(np.zeros(4 * VOCAB * layout.program.ops[0].outputs[0].width + 4096, np.uint8))
    return CpuExecutor(
        library=ProgramLibrary(library), layout=layout, weights=weights, threads=1, link=link, state=state
    )


def _round(executor: CpuExecutor, link: RankLink, limits: StepLimits) -> float:
    inputs = StepInputs.allocate(limits)
    inputs.num_chunks = inputs.num_tokens = inputs.chunk_len[0] = 1
    executor.op_seconds[:] = 0
    for _ in range(STEPS):
        link.ring.write(inputs)
        executor.hand_out()
        executor.submit(inputs)
        executor.wait()
    return float(executor.op_seconds[2:-1].mean()) / STEPS
