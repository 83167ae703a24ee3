"""The drive takes a file's bytes while it is being made."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from firelane.weights.storage import write_behind
from firelane.weights.storage.write_behind import WriteBehind


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(write_behind, "INTERVAL_S", 0.001)


def synced(monkeypatch, error=None):
    """Calls of fdatasync, by descriptor; set once there is one."""
    calls, some = [], threading.Event()

    def fdatasync(fd):
        calls.append(fd)
        some.set()
        if error is not None:
            raise error

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return calls, some


def test_bytes_are_written_while_the_block_runs_and_not_after_it(monkeypatch):
    calls, some = synced(monkeypatch)
    with WriteBehind(77):
        assert some.wait(60)
    count = len(calls)
    assert set(calls) == {77}
    assert not any(thread.name == "write behind" for thread in threading.enumerate())
    assert len(calls) == count


def test_a_drive_that_fails_fails_the_block(monkeypatch):
    _, some = synced(monkeypatch, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"), WriteBehind(77):
        assert some.wait(60)


def test_the_error_of_the_block_comes_first(monkeypatch):
    _, some = synced(monkeypatch, OSError(errno.EIO, "Input/output error"))

    def fails():
        assert some.wait(60)
        raise ValueError("bad weight")

    with pytest.raises(ValueError, match="bad weight"), WriteBehind(77):
        fails()


def test_a_real_file(tmp_path):
    with (tmp_path / "file").open("wb") as file, WriteBehind(file.fileno()):
        file.write(b"x" * (1 << 20))
    assert (tmp_path / "file").stat().st_size == 1 << 20
