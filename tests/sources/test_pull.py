"""Pulling objects: in ranges, in any order, over again where something was damaged, and on after a kill."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from firelane import env
from firelane.errors import StoreError
from firelane.sources import pull
from firelane.sources.pull import PulledFile
from firelane.stores.address import parse
from firelane.stores.client import ObjectStore
from firelane.stores.objects import StoredObject
from tests.models.families import make_checkpoint
from tests.stores.s3_server import Fault, S3Server, s3_server

PART = 1000
DATA = random.Random(0).randbytes(9_500)


@pytest.fixture
def store(buckets: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr(pull, "PART_BYTES", PART)
    (buckets / "bucket" / "x").write_bytes(DATA)
    return ObjectStore(parse("s3://bucket"))


@pytest.fixture
def file(store: ObjectStore, tmp_path: Path) -> PulledFile:
    return PulledFile(tmp_path / "x", store.head("x"))


def fail_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store gives so many ranges, then no more."""
    left, read = iter(range(count)), ObjectStore.read

    def limited(self: ObjectStore, wanted: StoredObject, begin: int, end: int) -> memoryview:
        if next(left, None) is None:
            raise StoreError("the store fails")
        return read(self, wanted, begin, end)

    monkeypatch.setattr(pull, "READERS", 1)
    monkeypatch.setattr(ObjectStore, "read", limited)


def test_all_of_it(file: PulledFile, store: ObjectStore) -> None:
    counts: list[int] = []
    assert not file.is_whole()
    assert file.pull(store, counts.append) == len(DATA)
    assert file.is_whole()
    assert file.path.read_bytes() == DATA
    assert sum(counts) == len(DATA)
    assert not file.partial.exists()
    assert file.pull(store) == 0


def test_an_empty_object(store: ObjectStore, buckets: Path, tmp_path: Path) -> None:
    (buckets / "bucket" / "empty").touch()
    file = PulledFile(tmp_path / "empty", store.head("empty"))
    assert file.pull(store) == 0
    assert file.is_whole()


def test_it_goes_on(file: PulledFile, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges that are there are not fetched again; the last record may be cut."""
    with monkeypatch.context() as failing:
        fail_after(4, failing)
        with pytest.raises(StoreError, match="fails"):
            file.pull(store)
    assert not file.path.exists()
    ranges = file.path.with_name(".x.ranges")
    ranges.write_bytes(ranges.read_bytes()[:-1])
    assert file.pull(store) == len(DATA) - 3 * PART
    assert file.path.read_bytes() == DATA


def test_a_drive_that_fills_up(file: PulledFile, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that have come stay, and the next pull goes on there."""
    left, write = iter(range(2)), os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data, offset)

    with monkeypatch.context() as patched:
        patched.setattr(pull, "READERS", 1)
        patched.setattr(pull.os, "pwrite", full)
        with pytest.raises(OSError, match="No space left on device"):
            file.pull(store)
    assert not file.is_whole()
    assert file.pull(store) == len(DATA) - 2 * PART
    assert file.path.read_bytes() == DATA


@pytest.mark.parametrize("renamed", [True, False])
def test_ranges_that_were_damaged(
    file: PulledFile, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, *, renamed: bool
) -> None:
    """In a whole file, or in one that is not (after a power loss)."""
    if renamed:
        file.pull(store)
    else:
        with monkeypatch.context() as failing:
            fail_after(9, failing)
            with pytest.raises(StoreError):
                file.pull(store)
    path = file.path if renamed else file.partial
    with path.open("r+b") as damaged:
        damaged.seek(2 * PART + 7)
        damaged.write(b"zeros")
    assert file.pull(store) == PART + (0 if renamed else len(DATA) - 9 * PART)
    assert file.path.read_bytes() == DATA


def test_another_version_begins_anew(
    file: PulledFile, store: ObjectStore, buckets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        fail_after(4, failing)
        with pytest.raises(StoreError, match="fails"):
            file.pull(store)
    (buckets / "bucket" / "x").write_bytes(DATA[::-1])
    with pytest.raises(StoreError, match="was replaced while it was read"):
        file.pull(store)
    other = PulledFile(file.path, store.head("x"))
    assert other.pull(store) == len(DATA)
    assert other.path.read_bytes() == DATA[::-1]


# ---- a real server, and processes that are killed


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    make_checkpoint("llama_bias", "bfloat16", tmp_path / "s3" / "bucket" / "model")
    with s3_server(tmp_path / "s3") as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def test_a_killed_pull_is_taken_over(server: S3Server, tmp_path: Path) -> None:
    """Two processes pull one model: the first is killed within a file, the second waits, then goes on."""
    server.proxy.faults += [Fault(), Fault(after=100, how="stall")]  # the header, then the first range
    command = [sys.executable, "-m", "firelane", "pull", "s3://bucket/model"]
    environment = env.for_child(FIRELANE_CACHE_DIR=str(tmp_path / "cache"), FIRELANE_LOG_LEVEL="info")
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as first:
        assert server.proxy.stalled.wait(60)
        assert not list((tmp_path / "cache").glob("models/*/model.safetensors"))
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as second:
            os.kill(first.pid, signal.SIGKILL)
            out, _ = second.communicate(timeout=60)
    assert second.returncode == 0, out
    (pulled,) = (tmp_path / "cache").glob("models/*/model.safetensors")
    assert pulled.read_bytes() == (tmp_path / "s3" / "bucket" / "model" / "model.safetensors").read_bytes()
    assert not list(pulled.parent.glob(".*.partial"))
