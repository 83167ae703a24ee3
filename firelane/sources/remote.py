"""Models in object stores: their small files are fetched into a directory of the cache, beside an index of
the weights, which stay where they are until they are wanted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from firelane.errors import CacheError, CheckpointError, ModelNotFoundError, StoreError
from firelane.sources import files
from firelane.storage import cache_directory, write_whole
from firelane.stores.client import ObjectStore
from firelane.stores.objects import StoredObject
from firelane.weights.storage import checked_json
from firelane.weights.storage.remote import (
    NAME,
    READERS,
    VERSION,
    RemoteFile,
    RemoteIndex,
    header_digest,
    header_path,
    read_index,
)
from firelane.weights.storage.safetensors import MAX_HEADER_BYTES

SINGLE = "model.safetensors"
FIRST_BYTES = 1 << 20
"""Bytes that are read first of a file of weights: most headers are shorter."""
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, kw_only=True)
class RemoteModel:
    """The files that a store has of a model. url: what users call it by."""

    store: ObjectStore
    url: str
    small: tuple[StoredObject, ...]
    weights: tuple[StoredObject, ...]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (*self.small, *self.weights))

    @property
    def key(self) -> str:
        """The name of its directory, which another version of any object has not."""
        objects = (*self.small, *self.weights)
        versions = sorted(f"{one.name} {one.nbytes} {one.etag or one.modified_s}" for one in objects)
        return f"{url_key(self.url)}-{_digest([str(VERSION), *versions])}"


def url_key(url: str) -> str:
    """The beginning of the names of a model's directories, whatever version."""
    name = url.rpartition("/")[2]
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)[:80]
    return f"{safe}-{_digest([url])}"


def find(store: ObjectStore) -> RemoteModel:
    """The model in a directory of Hugging Face layout. Raises StoreError, ModelNotFoundError,
    CheckpointError."""
    objects, is_listed = _there(store)
    found = {one.name: one for one in objects}
    if "config.json" not in found:
        raise ModelNotFoundError(
            f"{store.address}: no config.json there; give the directory of a model in Hugging Face layout, "
            "or a .gguf file"
        )
    shards = [SINGLE]
    if files.INDEX in found:
        shards = _shards(store, store.fetch(files.INDEX)[1])
    missing = [name for name in shards if name not in found]
    if missing and not is_listed:
        found |= {one.name: one for one in _heads(store, missing)}
        missing = [name for name in shards if name not in found]
    if missing:
        raise CheckpointError(f"{store.address}/{missing[0]}: is not there: upload the model again")
    small = tuple(found[name] for name in sorted(found) if files.is_small(name))
    weights = tuple(found[name] for name in shards)
    return RemoteModel(store=store, url=str(store.address), small=small, weights=weights)


def find_gguf(store: ObjectStore, name: str) -> RemoteModel:
    """A model in one GGUF file of the directory, or the first one of its parts. Raises StoreError,
    CheckpointError."""
    weights = tuple(in_parallel(store.head, files.gguf_parts(name)))
    return RemoteModel(store=store, url=f"{store.address}/{name}", small=(), weights=weights)


def newest(url: str, models: Path) -> Path | None:
    """The directory of a model that was used last, of those that are whole."""
    found = [path for path in models.glob(f"{url_key(url)}-*") if is_whole(path)]
    return max(found, key=lambda path: (path / NAME).stat().st_mtime_ns, default=None)


def is_whole(directory: Path) -> bool:
    """Whether all that a model needs is there, or is in the store."""
    index = read_index(directory)
    return index is not None and all((directory / one.name).is_file() for one in index.small)


def touch(directory: Path) -> None:
    """Note that it is used now."""
    os.utime(directory / NAME)


@contextmanager
def cache_errors(path: Path) -> Generator[None]:
    """Errors of the file system as CacheErrors."""
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"{path}: cannot be written: {error.strerror}; make room, or set FIRELANE_CACHE_DIR to another "
            "directory"
        ) from error


def in_parallel(act: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """Requests wait for the store most of their time."""
    with ThreadPoolExecutor(READERS, thread_name_prefix="store") as pool:
        return list(pool.map(act, items))


def _there(store: ObjectStore) -> tuple[list[StoredObject], bool]:
    """Objects of the directory, and whether these are all: where they may not be listed, those of usual
    names."""
    if store.address.is_web:
        return _usual(store), False
    try:
        return [*store.list(), *_present(store, [files.TOOL_TEMPLATE])], True
    except StoreError as error:
        if error.reason != "denied":
            raise
        listing = error
    try:
        return _usual(store), False
    except StoreError as error:
        if error.reason in ("denied", "other"):  # answers to HEAD have no body that says why
            raise listing from None
        raise


def _usual(store: ObjectStore) -> list[StoredObject]:
    usual = [name for name in files.SMALL if "*" not in name]
    return _heads(store, [*usual, *files.TEMPLATES, SINGLE])


def _heads(store: ObjectStore, names: list[str]) -> list[StoredObject]:
    """The objects that are there; the first one has to be."""
    return [store.head(names[0]), *_present(store, names[1:])]


def _present(store: ObjectStore, names: list[str]) -> list[StoredObject]:
    """The objects that are there. Without the right to list, some stores deny what is not there."""

    def head(name: str) -> StoredObject | None:
        try:
            return store.head(name)
        except StoreError as error:
            if error.reason not in ("missing", "denied"):
                raise
            return None

    return [one for one in in_parallel(head, names) if one is not None]


def _shards(store: ObjectStore, index: bytes) -> list[str]:
    """Names of the files of weights. Checkpoint.open() says more of an index that is not valid."""
    try:
        names = set(cast(dict[Any, Any], json.loads(index)["weight_map"]).values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        names = set[Any]()
    if not names or not all(isinstance(name, str) and name and Path(name).name == name for name in names):
        raise CheckpointError(f"{store.address}/{files.INDEX}: not a valid index: upload the model again")
    return sorted(names)


def fetch(model: RemoteModel, directory: Path, *, allow_http: bool) -> None:
    """Fill the directory with all but the weights, its index last. The caller holds its lock. Raises
    StoreError, OSError."""
    cache_directory(directory)
    in_parallel(partial(_fetch_small, model.store, directory), model.small)
    found = in_parallel(partial(_fetch_header, model.store, directory), model.weights)
    index = RemoteIndex(
        version=VERSION,
        url=model.url,
        allow_http=allow_http,
        small=list(model.small),
        files=found,
    )
    checked_json.write(directory / NAME, index)


def _fetch_small(store: ObjectStore, directory: Path, wanted: StoredObject) -> None:
    found, data = store.fetch(wanted.name)
    if not found.is_same(wanted):
        raise StoreError(
            f"{store.address}/{wanted.name}: was replaced while it was read: start again", reason="changed"
        )
    path = directory / wanted.name
    cache_directory(path.parent)
    write_whole(path, data)


def _fetch_header(store: ObjectStore, directory: Path, wanted: StoredObject) -> RemoteFile:
    """The first bytes of a file of weights, as far as its tensors; of a GGUF file, which is pulled, none."""
    if wanted.name.endswith(".gguf"):
        return RemoteFile(stored=wanted, header="")
    first = bytes(store.read(wanted, 0, min(FIRST_BYTES, wanted.nbytes))) if wanted.nbytes else b""
    length = 8 + int.from_bytes(first[:8], "little")
    if length <= min(wanted.nbytes, 8 + MAX_HEADER_BYTES):  # else whoever opens it says what is wrong
        rest = bytes(store.read(wanted, len(first), length)) if length > len(first) else b""
        first = (first + rest)[:length]
    write_whole(header_path(directory, wanted.name), first)
    return RemoteFile(stored=wanted, header=header_digest(first))


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
