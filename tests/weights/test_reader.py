"""Reading past the page cache gives what reading through it gives, at any offset."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from firelane.weights.storage import reader as reader_module
from firelane.weights.storage.file_bytes import DIRECT_BYTES
from firelane.weights.storage.reader import DriveReader, ReadBuffer
from firelane.weights.storage.safetensors import SafetensorsFile
from tests.weights.files import write_safetensors

SIZE = 3 * 4096 + 1234
DATA = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)


@pytest.fixture(params=[False, True], ids=["direct", "cached"])
def cached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a file counts as cached. A file system that knows no other way is read through the cache."""
    monkeypatch.setattr(reader_module, "_is_cached", lambda _fd: request.param)
    return request.param


def test_any_piece(tmp_path: Path, cached: bool) -> None:
    DATA.tofile(tmp_path / "x")
    reader, buffer = DriveReader(tmp_path / "x"), ReadBuffer(SIZE)
    assert not (cached and reader.direct)
    for begin in (0, 1, 4095, 4096, 4097, 8192, SIZE - 1):
        for end in {begin, begin + 1, 4096, 8192, 8193, SIZE - 1, SIZE}:
            if begin <= end <= SIZE:
                np.testing.assert_array_equal(reader.read(begin, end - begin, buffer), DATA[begin:end])


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("begin", [0, 4096, 5000, SIZE, 4 * 4096])
def test_past_the_end(tmp_path: Path, begin: int) -> None:
    DATA.tofile(tmp_path / "x")
    size = SIZE - begin + 1 if begin <= SIZE else 1
    with pytest.raises(OSError, match="the file ends at byte"):
        DriveReader(tmp_path / "x").read(begin, size, ReadBuffer(SIZE + 4096))


def test_a_file_that_was_just_written_is_cached(tmp_path: Path) -> None:
    DATA.tofile(tmp_path / "x")
    assert not DriveReader(tmp_path / "x").direct


def test_memory_that_a_drive_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_is_cached", lambda _fd: False)
    DATA.tofile(tmp_path / "x")
    reader, buffer = DriveReader(tmp_path / "x"), ReadBuffer(SIZE)
    preadv, there = os.preadv, buffer.pages.ctypes.data

    def refuse(fd: int, views: list[memoryview], offset: int) -> int:
        at = np.frombuffer(views[0], np.uint8).ctypes.data
        if there <= at < there + len(buffer.pages):
            raise OSError(errno.EFAULT, "Bad address")
        return preadv(fd, views, offset)

    if reader.direct:
        monkeypatch.setattr(os, "preadv", refuse)
    np.testing.assert_array_equal(reader.read(5, SIZE - 5, buffer), DATA[5:])


def test_buffer_in_given_memory() -> None:
    memory = np.zeros(ReadBuffer.memory_bytes(SIZE) + 100, np.uint8)
    for shift in (0, 1, 100):
        pages = ReadBuffer(SIZE, memory[shift:]).pages
        assert np.shares_memory(pages, memory)
        assert pages.ctypes.data % 4096 == 0
        assert len(pages) >= SIZE + 4096
    with pytest.raises(AssertionError, match="bytes for reads of"):
        ReadBuffer(SIZE, memory[101:])


@pytest.mark.usefixtures("cached")
def test_rows_of_tensors(tmp_path: Path) -> None:
    """The same read-only rows, views or not."""
    rng = np.random.default_rng(0)
    big = rng.integers(0, 2**15, (300, DIRECT_BYTES // 128 // 2), np.uint16)
    tensors = {"odd": np.arange(3, dtype=np.float32), "big": big}
    write_safetensors(tmp_path / "x", tensors)
    file = SafetensorsFile(tmp_path / "x")
    for first, last in [(0, 300), (1, 299), (7, 140), (5, 5), (300, 300), (0, 1)]:
        rows = file.rows("big", first, last)
        np.testing.assert_array_equal(rows, big[first:last])
        assert not rows.flags.writeable
        buffer = ReadBuffer(big.nbytes)
        rows = file.rows("big", first, last, buffer)
        np.testing.assert_array_equal(rows, big[first:last])
        assert first == last or np.shares_memory(rows, buffer.pages)
    np.testing.assert_array_equal(file.rows("odd", 1, 3), [1, 2])
