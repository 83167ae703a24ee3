"""NodeCache: models of object stores and packed weights on this node's drive, under one limit. What was used
longest ago goes first; what a process uses stays."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from firelane.errors import CacheError, ModelNotFoundError, StoreError
from firelane.sources import remote
from firelane.sources.entries import GIB, CacheEntry, is_of, models_in, packed_in
from firelane.sources.pull import PulledFile
from firelane.sources.remote import RemoteModel
from firelane.storage import cache_directory, is_in_use, locked, remove_leftovers, try_lock
from firelane.stores.client import ObjectStore
from firelane.weights.progress import Progress, silent
from firelane.weights.storage.remote import read_index

log = logging.getLogger(__name__)


class NodeCache:
    """Safe from many processes, also of several machines where the drive they share knows locks. limit_bytes:
    of all entries together, 0 for none."""

    def __init__(self, cache_dir: Path, *, limit_bytes: int = 0) -> None:
        self._models, self._packed = cache_dir / "models", cache_dir / "weights"
        self._limit_bytes = limit_bytes

    def entries(self) -> list[CacheEntry]:
        """Entries, those used longest ago first."""
        models = list(models_in(self._models))
        url_of = {entry.directory: entry.source for entry in models}
        return sorted([*models, *packed_in(self._packed, url_of)], key=lambda entry: entry.used_s)

    def model_directory(
        self,
        store: ObjectStore,
        *,
        whole: bool = False,
        allow_http: bool = False,
        progress: Progress = silent,
    ) -> Path:
        """The directory of the model that the store has; where the store cannot be reached, of the one that
        was fetched last. whole: with its weights, which else are read from the store when they are wanted.
        Raises StoreError, ModelNotFoundError, CheckpointError, CacheError."""
        try:
            model = remote.find(store)
        except StoreError as error:
            return self._known(str(store.address), error, whole=whole)
        return self._fetched(model, whole=whole, allow_http=allow_http, progress=progress)

    def gguf_file(self, store: ObjectStore, name: str, *, progress: Progress = silent) -> Path:
        """A GGUF file of the store's directory, the first one of its parts, pulled. Raises as
        model_directory()."""
        try:
            model = remote.find_gguf(store, name)
        except StoreError as error:
            return self._known(f"{store.address}/{name}", error, whole=True) / name
        return self._fetched(model, whole=True, allow_http=False, progress=progress) / name

    def _fetched(self, model: RemoteModel, *, whole: bool, allow_http: bool, progress: Progress) -> Path:
        directory = self._models / model.key
        with remote.cache_errors(directory):
            cache_directory(self._models)
            with self._making(directory):
                if not remote.is_whole(directory):
                    self.make_room(model.nbytes, keep=directory)
                    _fetch(model, directory, allow_http=allow_http)
                if whole:
                    _pull(model, directory, progress)
            remote.touch(directory)
        return directory

    def _known(self, url: str, error: StoreError, *, whole: bool) -> Path:
        """The files that were fetched before, where the store cannot be reached. Raises the error where it is
        of another kind, or nothing is there."""
        known = remote.newest(url, self._models)
        if error.reason != "unreachable" or known is None or (whole and not _is_pulled(known)):
            raise error
        log.warning("%s; what was fetched before is taken", error)
        return known

    def of(self, source: str) -> list[CacheEntry]:
        """All that was made of a model. Raises ModelNotFoundError where there is nothing."""
        found = [entry for entry in self.entries() if is_of(entry, source)]
        if not found:
            named = source if source.strip() else f"{source!r} names no model"
            raise ModelNotFoundError(f"{named}: nothing of it is in the cache; see `firelane cache list`")
        return found

    def remove(self, source: str) -> list[CacheEntry]:
        """Take away all that was made of a model; returns what that was. Raises ModelNotFoundError,
        CacheError."""
        found = self.of(source)
        used = next((entry for entry in found if self._is_used(entry)), None)
        if used is not None:
            raise CacheError(f"{source}: is used by a process ({used.path}): stop it first")
        with remote.cache_errors(found[0].path):
            return [entry for entry in found if _remove(entry)]

    def make_room(self, nbytes: int, *, keep: Path | None = None) -> None:
        """Take away what was used longest ago until `nbytes` more fit under the limit. Raises CacheError."""
        if not self._limit_bytes:
            return
        entries = [entry for entry in self.entries() if entry.path != keep]
        total = sum(entry.nbytes for entry in entries) + nbytes
        for entry in entries:
            if total <= self._limit_bytes:
                return
            if not self._is_used(entry) and _remove(entry):
                log.info("cache_removed path=%s bytes=%d", entry.path, entry.nbytes)
                total -= entry.nbytes
        if total > self._limit_bytes:
            raise CacheError(
                f"{self._models}: {nbytes / GIB:.3g} GiB more do not fit under FIRELANE_CACHE_LIMIT_GIB "
                f"({self._limit_bytes / GIB:.3g}) beside what is in use: raise it, or stop a model"
            )

    def _is_used(self, entry: CacheEntry) -> bool:
        """A model's directory is used while packed weights of it are."""
        if entry.is_packed:
            return is_in_use(entry.mark)
        made = packed_in(self._packed, {})
        return any(is_in_use(one.mark) for one in made if one.directory == entry.directory)

    @contextmanager
    def _making(self, directory: Path) -> Generator[None]:
        """One process makes a directory, the others wait for it."""
        lock = directory.with_name(f"{directory.name}.lock")
        with lock.open("w") as file:
            if not try_lock(file.fileno()):
                log.info("another process fetches %s: waiting for it", directory.name)
        with locked(lock):
            yield


def _fetch(model: RemoteModel, directory: Path, *, allow_http: bool) -> None:
    """Nothing stays of a fetch that fails, but what was there before."""
    is_new = not directory.exists()
    try:
        remote.fetch(model, directory, allow_http=allow_http)
    except BaseException:
        if is_new:
            shutil.rmtree(directory, ignore_errors=True)
        raise


def _is_pulled(directory: Path) -> bool:
    index = read_index(directory)
    return index is not None and all(
        PulledFile(directory / file.stored.name, file.stored).is_whole() for file in index.files
    )


def _pull(model: RemoteModel, directory: Path, progress: Progress) -> None:
    """All weights of the model. The caller holds the directory's lock."""
    done, total = 0, sum(one.nbytes for one in model.weights)

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        progress("pull", done, total, "B")

    for stored in model.weights:
        PulledFile(directory / stored.name, stored).pull(model.store, on_bytes)


def _remove(entry: CacheEntry) -> bool:
    """Whether it is gone. What is being made, or read at this moment by another, is left alone."""
    try:
        with entry.lock.open("w") as lock:
            if not try_lock(lock.fileno()):
                return False
            if entry.is_packed:
                remove_leftovers(entry.path)
                for path in (entry.path, entry.path.with_suffix(".source.json"), entry.mark):
                    path.unlink(missing_ok=True)
            else:
                shutil.rmtree(entry.path)
    except OSError as error:
        log.warning("%s: cannot be removed: %s", entry.path, error.strerror)
        return False
    return True
