"""The node's cache: its limit, what goes first, what stays, and what is made once."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from firelane.cli import main
from firelane.errors import CacheError, ModelNotFoundError, StoreError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.sources import pull, remote
from firelane.sources.cache import NodeCache
from firelane.sources.entries import hub_id
from firelane.sources.resolve import resolve
from firelane.storage import UseMark, is_in_use, locked
from firelane.stores.address import parse
from firelane.stores.client import ObjectStore
from firelane.weights.packing.loader import load_packed
from firelane.weights.packing.packed import PackedWeights
from firelane.weights.storage.files import SINGLE
from tests.models.families import make_checkpoint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def models(buckets: Path) -> list[str]:
    """Addresses of three models of the same size."""
    for name in "abc":
        make_checkpoint("llama_bias", "bfloat16", buckets / "bucket" / name)
    return [f"s3://bucket/{name}" for name in "abc"]


def fetched(cache: NodeCache, url: str, *, whole: bool = False) -> Path:
    return cache.model_directory(ObjectStore(parse(url)), whole=whole)


def packed(model: Path, directory: Path) -> PackedWeights:
    return load_packed(load_program(read_config(model)), model, directory)


def used_at(path: Path, seconds: int) -> None:
    """An entry of that path was used then."""
    mark = path / remote.NAME if path.is_dir() else path.with_suffix(".used")
    os.utime(mark, (seconds, seconds))


def sources(cache: NodeCache) -> list[tuple[str, bool]]:
    return [(entry.source, entry.is_packed) for entry in cache.entries()]


def test_entries(models: list[str], directory: Path) -> None:
    """Entries come with the one used longest ago first, by the names that models are served by."""
    cache = NodeCache(directory)
    assert cache.entries() == []
    first, second = (fetched(cache, url, whole=True) for url in models[:2])
    weights = packed(second, directory)
    for path, seconds in ((second, 10), (weights.path, 20), (first, 30)):
        used_at(path, seconds)
    assert sources(cache) == [(models[1], False), (models[1], True), (models[0], False)]
    sizes = {entry.path: entry.nbytes for entry in cache.entries()}
    assert sizes[first] > (first / SINGLE).stat().st_size
    assert [entry.used_s for entry in cache.entries()] == [10, 20, 30]
    weights.close()


def test_what_was_used_longest_ago_goes_first(models: list[str], directory: Path) -> None:
    cache = NodeCache(directory)
    first, second = (fetched(cache, url, whole=True) for url in models[:2])
    used_at(first, 20)
    used_at(second, 10)
    limit = sum(entry.nbytes for entry in cache.entries()) + 4096
    third = fetched(NodeCache(directory, limit_bytes=limit), models[2], whole=True)
    assert (first.is_dir(), second.is_dir(), third.is_dir()) == (True, False, True)
    used_at(first, 10)
    assert fetched(NodeCache(directory, limit_bytes=limit), models[1], whole=True) == second
    assert (first.is_dir(), second.is_dir(), third.is_dir()) == (False, True, True)


def test_what_is_used_stays(models: list[str], directory: Path) -> None:
    """Packed weights that a process has mapped, and the model that they are of."""
    cache = NodeCache(directory)
    model = fetched(cache, models[0])
    weights = packed(model, directory)
    used_at(model, 10)
    small = NodeCache(directory, limit_bytes=1 << 20)
    with pytest.raises(CacheError, match=r"do not fit under FIRELANE_CACHE_LIMIT_GIB \(0\.000977\)"):
        small.make_room(1 << 20)
    assert len(cache.entries()) == 2
    with pytest.raises(CacheError, match=r"is used by a process .*: stop it first"):
        cache.remove(models[0])
    weights.close()
    small.make_room(1 << 20)
    assert cache.entries() == []


def test_remove(models: list[str], directory: Path) -> None:
    cache = NodeCache(directory)
    for url in models[:2]:
        packed(fetched(cache, url), directory).close()
    told = cache.of(models[0])
    assert cache.remove(f"{models[0]}/") == told
    assert {entry.is_packed for entry in told} == {False, True}
    assert sorted(sources(cache)) == [(models[1], False), (models[1], True)]
    assert not list((directory / "weights").glob("*.tmp"))
    with pytest.raises(ModelNotFoundError, match="nothing of it is in the cache; see `firelane cache list`"):
        cache.remove(models[0])


def test_remove_weights_of_other_models(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are of a directory, however it is written, and of a model of the hub."""
    cache = NodeCache(directory)
    here = make_checkpoint("llama_bias", "bfloat16", tmp_path / "here")
    hub = make_checkpoint("llama_bias", "float32", tmp_path / "models--owner--name" / "snapshots" / "1")
    packed(here, directory).close()
    packed(hub, directory).close()
    assert sorted(sources(cache)) == sorted([(str(here), True), ("owner/name", True)])
    assert hub_id(str(hub)) == "owner/name"
    cache.remove("owner/name")
    monkeypatch.chdir(tmp_path)
    cache.remove("./here")
    assert cache.entries() == []


ODD = ["", " ", "/", "//", ".", "..", "~", "owner", "s3://", "s3://bucket", "a" * 300, "a\0b"]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_no_models(
    tmp_path: Path, models: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No such name removes a directory's, the hub's or a store's model, even where the command runs in such a
    directory's parent."""
    cache = NodeCache(directory)
    here = make_checkpoint("llama_bias", "bfloat16", tmp_path / "here")
    packed(here, directory).close()
    packed(fetched(cache, models[0]), directory).close()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"nothing of it is in the cache"):
        cache.remove(name)
    assert len(cache.entries()) == 3


def test_the_command_names_what_it_removes(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(directory))
    here = make_checkpoint("llama_bias", "bfloat16", tmp_path / "here")
    packed(here, directory).close()
    (entry,) = NodeCache(directory).entries()
    assert main(["rm", "--dry-run", str(here)]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.endswith(f" kB  {entry.path}")
    assert last.endswith("would be removed")
    assert entry.path.exists()
    assert main(["rm", str(here)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == first
    assert not entry.path.exists()


def test_what_a_killed_fetch_leaves_is_removed_by_its_address_or_its_path(
    models: list[str], directory: Path
) -> None:
    cache = NodeCache(directory)
    for name in (models[0], str(directory / "models" / fetched(cache, models[0]).name)):
        half = fetched(cache, models[0])
        other = fetched(cache, models[1])
        (half / remote.NAME).unlink()
        assert [entry.path for entry in cache.remove(name)] == [half]
        assert other.is_dir()


def test_a_fetch_that_fails_leaves_nothing_new(
    models: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = NodeCache(directory)
    there = fetched(cache, models[1], whole=True)
    (there / "config.json").unlink()

    def fail(*_: object) -> None:
        raise StoreError("gone", reason="other")

    monkeypatch.setattr(remote, "_fetch_header", fail)
    for url in models[:2]:
        with pytest.raises(StoreError, match="gone"):
            fetched(cache, url)
    assert [entry.path for entry in cache.entries()] == [there]
    assert (there / SINGLE).is_file()


def test_half_of_a_model_goes_too(models: list[str], directory: Path) -> None:
    cache = NodeCache(directory)
    half = fetched(cache, models[0])
    (half / remote.NAME).unlink()
    assert sources(cache) == [("", False)]
    NodeCache(directory, limit_bytes=1 << 20).make_room(1 << 20)
    assert not half.exists()


def test_what_is_being_made_stays(models: list[str], directory: Path) -> None:
    cache = NodeCache(directory)
    half = fetched(cache, models[0])
    (entry,) = cache.entries()
    with locked(entry.lock), pytest.raises(CacheError, match="do not fit"):
        NodeCache(directory, limit_bytes=1 << 20).make_room(1 << 20)
    assert half.is_dir()


def test_one_fetches_and_the_others_wait(
    models: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each gets the same directory, and every object is read once."""
    caplog.set_level("INFO")
    began, go, fetches = threading.Event(), threading.Event(), []
    fetch = ObjectStore.fetch

    def slow(self: ObjectStore, name: str) -> object:
        fetches.append(name)
        began.set()
        assert go.wait(60)
        return fetch(self, name)

    monkeypatch.setattr(ObjectStore, "fetch", slow)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetched(NodeCache(directory), models[0], whole=True)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    assert began.wait(60)
    go.set()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert sorted(fetches) == sorted(set(fetches))


def test_a_full_drive(models: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pull.os, "posix_fallocate", full)
    with pytest.raises(CacheError, match="No space left on device; make room, or set FIRELANE_CACHE_DIR"):
        fetched(NodeCache(directory), models[0], whole=True)
    monkeypatch.undo()


def test_marks(tmp_path: Path) -> None:
    path = tmp_path / "x.used"
    assert not is_in_use(path)
    with UseMark(path):
        assert is_in_use(path)
        with UseMark(path):
            assert is_in_use(path)
        assert is_in_use(path)
    assert not is_in_use(path)
    UseMark(tmp_path / "none" / "x").close()


def test_the_limit_is_taken_from_the_environment(
    models: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRELANE_CACHE_LIMIT_GIB", "0.00001")
    with pytest.raises(CacheError, match="do not fit under FIRELANE_CACHE_LIMIT_GIB"):
        resolve(models[0], cache_dir=directory)
