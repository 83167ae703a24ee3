"""Pages of mapped files: what the kernel is asked for, and that bytes and addresses stay the same."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane.native import pages
from firelane.native.pages import HUGE_PAGE_BYTES, MappedFile, PageCacheFile, huge_bytes, private_huge_pages

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="pages are Linux's")
NBYTES = 2 * HUGE_PAGE_BYTES + 5000


@pytest.fixture
def written() -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 256, NBYTES, np.uint8)


@pytest.fixture
def mapped(tmp_path: Path, written: NDArray[np.uint8]) -> MappedFile:
    path = tmp_path / "file"
    written.tofile(path)
    with path.open("rb") as file:
        return MappedFile(file.fileno(), NBYTES)


def test_a_file_in_memory(mapped: MappedFile, written: NDArray[np.uint8]) -> None:
    array = mapped.array()
    assert (array == written).all()
    assert not array.flags.writeable
    mapped.close()
    assert array[-1] == written[-1]
    del array
    mapped.close()
    mapped.close()
    with pytest.raises(ValueError, match="closed"):
        mapped.array()


@LINUX
def test_an_address_that_huge_pages_can_have(mapped: MappedFile) -> None:
    assert mapped.array().ctypes.data % HUGE_PAGE_BYTES == 0


def test_a_file_that_cannot_be_mapped(tmp_path: Path) -> None:
    with (tmp_path / "pipe").open("wb") as file, pytest.raises(OSError, match=r"denied|Bad file"):
        MappedFile(file.fileno(), 100)


@LINUX
def test_copies_take_the_place_of_pages(mapped: MappedFile, written: NDArray[np.uint8]) -> None:
    array, address = mapped.array(), mapped.array().ctypes.data
    for start in range(0, NBYTES, HUGE_PAGE_BYTES):
        mapped.copy(start, min(HUGE_PAGE_BYTES, NBYTES - start))
    assert (array == written).all()
    assert (mapped.array() == written).all()
    assert mapped.array().ctypes.data == address
    lines = Path("/proc/self/maps").read_text().splitlines()
    (at,) = [line for line in lines if line.startswith(f"{address:x}-")]
    assert at.split()[1] == "r--p"


@LINUX
def test_who_reads_meanwhile_notices_nothing(mapped: MappedFile, written: NDArray[np.uint8]) -> None:
    array, begun, ended = mapped.array(), threading.Event(), threading.Event()
    same: list[bool] = []

    def read() -> None:
        while not ended.is_set():
            same.append(bool((array == written).all()))
            begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    begun.wait()
    for _ in range(20):
        for start in (0, HUGE_PAGE_BYTES):
            mapped.copy(start, HUGE_PAGE_BYTES)
    ended.set()
    reader.join()
    assert same
    assert all(same)


@LINUX
def test_what_the_kernel_refuses_leaves_the_pages(mapped: MappedFile, written: NDArray[np.uint8]) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        mapped.copy(100, 4096)
    assert (mapped.array() == written).all()


@LINUX
def test_the_share_of_huge_pages(mapped: MappedFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begin = mapped.array().ctypes.data
    smaps = tmp_path / "smaps"
    monkeypatch.setattr(pages, "SMAPS", smaps)
    assert mapped.huge_share(0, NBYTES) == 0
    end = begin + -(-NBYTES // mmap.PAGESIZE) * mmap.PAGESIZE
    smaps.write_text(
        f"{begin - 4096:x}-{begin:x} r--p 00000000 00:00 0\nAnonHugePages:  6144 kB\n"
        f"{begin:x}-{end:x} r--s 00000000 fe:00 7 /a file\nSize: 9 kB\nFilePmdMapped:  2048 kB\n"
        f"{end:x}-{end + 4096:x} r--p 00000000 00:00 0\nAnonHugePages:  6144 kB\n"
    )
    assert mapped.huge_share(0, NBYTES) == 0.5
    assert mapped.huge_share(0, 4096) == 1.0  # none would fit
    assert huge_bytes(smaps.read_text(), begin, end) == HUGE_PAGE_BYTES


@pytest.mark.parametrize(
    ("all_sizes", "of_size", "given"),
    [
        ("always madvise [never]", None, False),
        ("always [madvise] never", None, True),
        ("[always] madvise never", "always [inherit] madvise never", True),
        ("always madvise [never]", "[always] inherit madvise never", True),
        ("[always] madvise never", "always inherit madvise [never]", False),
        (None, None, False),
    ],
)
def test_what_the_system_gives_private_memory(
    tmp_path: Path, all_sizes: str | None, of_size: str | None, given: bool
) -> None:
    (tmp_path / "hugepages-2048kB").mkdir()
    for text, path in (
        (all_sizes, tmp_path / "enabled"),
        (of_size, tmp_path / "hugepages-2048kB" / "enabled"),
    ):
        if text is not None:
            path.write_text(text + "\n")
    assert private_huge_pages(tmp_path) is given


def test_a_file_is_written_into_pages_that_are_there(tmp_path: Path, written: NDArray[np.uint8]) -> None:
    path = tmp_path / "file"
    with path.open("x+b") as file:
        os.ftruncate(file.fileno(), NBYTES)
        cache = PageCacheFile(file.fileno())
        cache.prepare(100, NBYTES)  # more than there is
        cache.prepare(NBYTES + HUGE_PAGE_BYTES, 100)
        file.write(written)
    assert (np.fromfile(path, np.uint8) == written).all()


def test_a_system_that_is_not_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: NDArray[np.uint8]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    written.tofile(tmp_path / "file")
    with (tmp_path / "file").open("rb") as file:
        mapped = MappedFile(file.fileno(), NBYTES)
        PageCacheFile(file.fileno()).prepare(0, NBYTES)
    assert (mapped.array() == written).all()
    mapped.close()


@LINUX
def test_a_file_that_is_let_go_reads_the_same_at_the_same_place(
    mapped: MappedFile, written: NDArray[np.uint8]
) -> None:
    array, address = mapped.array(), mapped.array().ctypes.data
    assert not mapped.let_go()
    mapped.copy(0, HUGE_PAGE_BYTES)
    assert mapped.let_go()
    lines = Path("/proc/self/maps").read_text().splitlines()
    (at,) = [line for line in lines if line.startswith(f"{address:x}-")]
    assert at.split()[1] == "r--s"
    assert (array == written).all()


@LINUX
@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED])
def test_memory_that_is_given_back_is_zero(flags: int) -> None:
    memory = np.frombuffer(mmap.mmap(-1, 10 * mmap.PAGESIZE, flags=flags | mmap.MAP_ANONYMOUS), np.uint8)
    memory[:] = 7
    pages.give_back(memory[: 9 * mmap.PAGESIZE + 1])
    assert not memory.any()
    memory[:] = 7
    assert (memory == 7).all()
