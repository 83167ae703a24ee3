"""Entries of the node's cache: what lies there, of which model, and when it was used last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from firelane.sources.remote import url_key
from firelane.weights.packing.loader import SUFFIX
from firelane.weights.packing.source import PackedSource
from firelane.weights.storage.remote import NAME, read_index

GIB = 1 << 30
HUB_PREFIX = "models--"
"""The beginning of the name of a model's directory in the hub's own cache."""


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """A model's directory, or a file of packed weights. source: what the model is called by, "" where nobody
    knows. directory: of the model. used_s: when it was used last."""

    path: Path
    source: str
    directory: str
    nbytes: int
    used_s: float

    @property
    def is_packed(self) -> bool:
        return self.path.suffix == SUFFIX

    @property
    def mark(self) -> Path:
        """The file of packed weights that says whether they are used: see storage.UseMark."""
        return self.path.with_suffix(".used")

    @property
    def lock(self) -> Path:
        """Held while it is made."""
        return self.path.with_suffix(".lock") if self.is_packed else Path(f"{self.path}.lock")


def models_in(models: Path) -> Iterator[CacheEntry]:
    """Directories of models, those without a valid index (of another version, half made) among them."""
    for path in models.glob("*/"):
        index = read_index(path)
        nbytes = sum(_bytes(file) for file in path.iterdir())
        used_s = _time(path / NAME) or _time(path)
        url = index.url if index is not None else ""
        yield CacheEntry(path=path, source=url, directory=str(path), nbytes=nbytes, used_s=used_s)


def packed_in(packed: Path, url_of: Mapping[str, str]) -> Iterator[CacheEntry]:
    """Files of packed weights. url_of: of directories of models in this cache."""
    for path in packed.glob(f"*{SUFFIX}"):
        source = PackedSource.read(path)
        directory = source.model if source is not None else ""
        used_s = _time(path.with_suffix(".used")) or _time(path)
        name = url_of.get(directory) or hub_id(directory) or directory
        yield CacheEntry(path=path, source=name, directory=directory, nbytes=_bytes(path), used_s=used_s)


def is_of(entry: CacheEntry, source: str) -> bool:
    """Whether an entry was made of the model that a user calls `source`: by its address, its hub id, its
    directory, or, where nobody knows what it is of, by its own path. A name of nothing is no model's."""
    name = source.strip().rstrip("/")
    if not name:
        return False
    if name in {entry.source, hub_id(entry.directory), str(entry.path)}:
        return True
    if "://" in name:
        return not entry.is_packed and entry.path.name.rpartition("-")[0] == url_key(name)
    directory = _resolved(name)
    return directory is not None and str(directory) == entry.directory


def _resolved(name: str) -> Path | None:
    """None of what no file can be named."""
    try:
        return Path(name).expanduser().resolve()
    except (OSError, ValueError, RuntimeError):
        return None


def hub_id(directory: str) -> str:
    """owner/name of a directory in the hub's cache; "" for others."""
    folder = next((part for part in Path(directory).parts if part.startswith(HUB_PREFIX)), "")
    return folder.removeprefix(HUB_PREFIX).replace("--", "/")


def _bytes(path: Path) -> int:
    """On the drive: a file that is being made has room before it has bytes."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
