"""Copies of adapters that were loaded while a server runs: they stay what they are while it serves them,
whatever becomes of the files that they were made of. So an engine that takes the place of one that died has
the very same.

    CACHE/adapters/NAME.lock    held while its server runs
    CACHE/adapters/NAME/1/      one adapter: adapter_config.json, adapter_model.safetensors
"""

from __future__ import annotations

import itertools
import os
import shutil
import weakref
from pathlib import Path

from firelane.errors import CacheError, RequestError
from firelane.sandbox.paths import ADAPTERS
from firelane.storage import UseMark, cache_directory, is_in_use, open_regular

FILES = ("adapter_config.json", "adapter_model.safetensors")
MOST_BYTES = 16 << 30
LOCK = ".lock"


class AdapterCopies:
    """Owns the copies of one server, which end with it."""

    def __init__(self, cache_dir: Path) -> None:
        """Makes nothing yet."""
        self._root, self._numbers = cache_dir / ADAPTERS, itertools.count(1)
        self._own: Path | None = None
        self._mark: UseMark | None = None

    def make(self, directory: Path) -> Path:
        """A copy of an adapter's files. Raises RequestError where they cannot be read, CacheError where they
        cannot be written."""
        own = self._own or self._begin()
        copy = own / str(next(self._numbers))
        try:
            copy.mkdir()
            for name in FILES:
                _copy(directory, name, copy / name)
        except OSError as error:
            shutil.rmtree(copy, ignore_errors=True)
            raise CacheError(f"{copy}: {error.strerror}") from error
        except RequestError:
            shutil.rmtree(copy, ignore_errors=True)
            raise
        return copy

    def remove(self, copy: Path) -> None:
        """Nothing happens to a directory that is no copy of this server's."""
        if self._own is not None and copy.parent == self._own:
            shutil.rmtree(copy, ignore_errors=True)

    def _begin(self) -> Path:
        """A directory of its own; those of servers that have ended go. Raises CacheError."""
        try:
            cache_directory(self._root)
            for lock in self._root.glob(f"*{LOCK}"):
                if not is_in_use(lock):
                    shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                    lock.unlink(missing_ok=True)
            own = self._root / os.urandom(8).hex()
            self._mark = UseMark(own.with_suffix(LOCK))
            own.mkdir(mode=0o700)
        except OSError as error:
            raise CacheError(f"{self._root}: {error.strerror}") from error
        weakref.finalize(self, _end, own, self._mark)
        self._own = own
        return own


def _copy(directory: Path, name: str, target: Path) -> None:
    try:
        source = open_regular(directory / name)
    except OSError as error:
        raise RequestError(_missing(directory, name, error), param="lora_path") from error
    with source, target.open("xb") as file:
        nbytes = os.fstat(source.fileno()).st_size
        if nbytes > MOST_BYTES:
            raise RequestError(f"{directory / name} is larger than an adapter may be", param="lora_path")
        at = 0
        while at < nbytes and (sent := os.sendfile(file.fileno(), source.fileno(), at, nbytes - at)):
            at += sent


def _missing(directory: Path, name: str, error: OSError) -> str:
    if (directory / "adapter_model.bin").exists():
        return f"{directory / 'adapter_model.bin'} may run code: save it as {FILES[1]}"
    return f"{directory / name}: {error.strerror}"


def _end(own: Path, mark: UseMark) -> None:
    shutil.rmtree(own, ignore_errors=True)
    own.with_suffix(LOCK).unlink(missing_ok=True)
    mark.close()
