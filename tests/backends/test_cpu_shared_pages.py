"""The KV cache in memory that another process maps."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.memory import HUGE_PAGE_BYTES, shared_zeroed
from firelane.backends.cpu.page_pool import CpuStatePool, PagePool, layout_id, state_layout_id
from firelane.contract import StepLimits, Window
from firelane.errors import OutOfMemoryError
from firelane.models.registry import load_program
from firelane.program.program import Program
from tests.backends.cpu_harness import Chunk, Machine, limits, machine, small_spec, with_spans
from tests.models.dense import dense_program
from tests.models.families import FAMILIES

PROGRAM = dense_program(small_spec())
READER = """
import mmap, sys
fd, start, size = map(int, sys.argv[1:])
sys.stdout.buffer.write(mmap.mmap(fd, 0, prot=mmap.PROT_READ)[start : start + size])
"""


def layout_of(program: Program = PROGRAM, sizes: StepLimits | None = None) -> Layout:
    return Layout(program=program, limits=sizes or limits(num_blocks=24), isa="portable")


@pytest.fixture
def pool() -> Iterator[PagePool]:
    made = PagePool(layout_of(), shared=True)
    yield made
    made.release()


def read_elsewhere(fd: int, start: int, size: int) -> bytes:
    """Bytes of the file, as a process sees them that was given the descriptor."""
    command = [sys.executable, "-c", READER, str(fd), str(start), str(size)]
    return subprocess.run(command, pass_fds=[fd], capture_output=True, check=True).stdout


def test_another_process_reads_a_page(pool: PagePool) -> None:
    shared = pool.as_bytes
    assert (shared.num_pages, shared.page_bytes) == pool.pages.shape == (24, layout_of().page_bytes)
    pool.pages[7] = np.random.default_rng(0).integers(0, 256, shared.page_bytes)
    assert read_elsewhere(shared.fd, 7 * shared.page_bytes, shared.page_bytes) == pool.pages[7].tobytes()
    assert not pool.pages[8].any()


HELD = """
import mmap, sys
held = mmap.mmap(int(sys.argv[1]), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.readline()
print(held[0], flush=True)
"""


def blocks(fd: int) -> int:
    """Pages of the file that the system has given."""
    return os.fstat(fd).st_blocks


def test_standby_gives_all_pages_back_under_the_same_descriptor(pool: PagePool) -> None:
    fd, at, before = pool.as_bytes.fd, pool.pages.ctypes.data, os.fstat(pool.as_bytes.fd).st_ino
    pool.pages[:] = 7
    assert blocks(fd) * 512 >= pool.pages.nbytes
    with subprocess.Popen(
        [sys.executable, "-c", HELD, str(fd)],
        pass_fds=[fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mapped\n"
        pool.standby()
        assert (pool.as_bytes.fd, pool.pages.ctypes.data) == (fd, at)
        assert os.fstat(fd).st_ino != before
        assert blocks(fd) == 0
        pool.pages[0] = 1
        out, _ = other.communicate("\n")
    assert out == "7\n"  # whoever has not mapped the file anew reads what was there, not what is
    assert read_elsewhere(fd, 0, 1) == b"\1"
    assert not pool.pages[1:].any()
    mine = mmap.mmap(-1, mmap.PAGESIZE)  # another mapping takes no part of that memory
    mine[:] = b"\2" * mmap.PAGESIZE
    assert pool.pages[0].tobytes() == b"\1" * pool.pages.shape[1]


def test_after_a_standby_the_file_cannot_be_written_by_others_either(pool: PagePool) -> None:
    for _ in range(2):
        pool.standby()
    with pytest.raises(PermissionError):
        mmap.mmap(pool.as_bytes.fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(pool.as_bytes.fd, 0)


def test_without_another_file_the_pages_stay(pool: PagePool, monkeypatch, caplog) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    pool.pages[:] = 7
    monkeypatch.setattr(os, "memfd_create", refused)
    pool.standby()
    assert (pool.pages == 7).all()
    assert "memory_not_given_back" in caplog.text


def test_states_are_given_back_too() -> None:
    states = CpuStatePool(recurrent_layout(), shared=True)
    shared = states.as_bytes
    assert shared is not None
    shared.pages[:] = 7
    states.standby()
    assert blocks(shared.fd) == 0
    assert not shared.pages.any()
    states.release()


def test_private_pages_are_given_back() -> None:
    private = PagePool(layout_of())
    private.pages[:] = 7
    private.standby()
    assert not private.pages.any()


def test_the_file_cannot_be_cut_short(pool: PagePool) -> None:
    """A peer that could would end this process with a bus error."""
    with pytest.raises(PermissionError):
        os.ftruncate(pool.as_bytes.fd, 0)


def test_the_file_cannot_be_written_by_others(pool: PagePool) -> None:
    with pytest.raises(PermissionError):
        mmap.mmap(pool.as_bytes.fd, pool.memory.nbytes)
    pool.pages[3] = 5


def test_a_released_pool_has_no_file(pool: PagePool) -> None:
    fd = pool.as_bytes.fd
    pool.release()
    pool.release()
    assert pool.as_bytes.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_private_pages_have_no_file() -> None:
    pool = PagePool(layout_of())
    assert pool.as_bytes.fd == -1
    assert not pool.pages.any()
    pool.release()


def recurrent_layout(family: str = "lfm2") -> Layout:
    program = load_program(FAMILIES[family]())
    return layout_of(program, limits(num_blocks=24, num_snapshots=3, state_bytes=program.state_bytes))


def test_another_process_reads_a_state() -> None:
    layout = recurrent_layout()
    states = CpuStatePool(layout, shared=True)
    shared = states.as_bytes
    assert shared is not None
    assert shared.pages.shape == (layout.limits.num_states, layout.limits.state_bytes)
    shared.pages[33] = np.random.default_rng(0).integers(0, 256, shared.page_bytes)
    assert read_elsewhere(shared.fd, 33 * shared.page_bytes, shared.page_bytes) == shared.pages[33].tobytes()
    states.release()
    states.release()
    assert state_layout_id(layout) != state_layout_id(recurrent_layout("qwen3_next"))


def test_private_states_have_no_file() -> None:
    private = CpuStatePool(recurrent_layout()).as_bytes
    assert private is not None
    assert private.fd == -1
    assert CpuStatePool(layout_of(), shared=True).as_bytes is None


def test_the_layout_id_changes_with_the_layout() -> None:
    ids = {
        layout_id(layout)
        for layout in (
            layout_of(),
            layout_of(sizes=limits(block_size=32)),
            layout_of(with_spans(PROGRAM, (Window(8), Window(8)))),
            layout_of(dense_program(small_spec(windows=(0,)))),
        )
    }
    assert len(ids) == 4
    assert layout_id(layout_of()) == layout_id(replace(layout_of(), isa="avx2", limits=limits(num_blocks=99)))


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(OutOfMemoryError, match="--kv-cache-gib"):
        shared_zeroed(1 << 62)


def test_whole_huge_pages() -> None:
    fd, memory = shared_zeroed(HUGE_PAGE_BYTES + 1)
    assert memory.size == 2 * HUGE_PAGE_BYTES
    os.close(fd)
    memory[-1] = 1


def test_shared_pages_give_the_same_bits(kernel_cache) -> None:
    def run(m: Machine) -> list[bytes]:
        m.greedy(0, range(100, 170))
        m.give_blocks(0, range(m.executor.limits.blocks_per_seq))
        outputs = [m.step([Chunk(0, 0, 70)])] + [m.step([Chunk(0, 70 + i, 1)]) for i in range(5)]
        drawn = [out.tokens[:1].tobytes() + out.logprobs[:1].tobytes() for out in outputs]
        m.executor.release()
        return drawn

    private, shared = (machine(PROGRAM, kernel_cache, shared_pages=flag) for flag in (False, True))
    assert private.executor.page_memory.fd == -1
    assert shared.executor.page_memory.fd >= 0
    assert run(private) == run(shared)
