"""Models in the hub's own cache, without a word to the hub: which are whole, how much of one is there, and
their end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from firelane.errors import ModelNotFoundError
from firelane.sources import files
from firelane.sources.files import choose

LEFTOVER = re.compile(r"(?P<blob>.+)\.[0-9a-f]{8}\.incomplete")
"""File of one process, which no other one goes on with."""


def repository(hub_id: str) -> Path:
    """The directory that the hub's library keeps a repository in."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}"


def whole_model(hub_id: str) -> Path | None:
    """The directory of the newest snapshot, where all that a model needs lies there."""
    directory = _snapshot(hub_id)
    if directory is None or not (directory / "config.json").is_file():
        return None
    wanted = _shards(directory)
    return directory if wanted and all((directory / name).is_file() for name in wanted) else None


def whole_gguf(hub_id: str, name: str) -> Path | None:
    """The (first) GGUF file whose name ends with `name`, where all its parts are there."""
    directory = _snapshot(hub_id)
    if directory is None:
        return None
    there = [str(path.relative_to(directory)) for path in directory.rglob("*.gguf") if path.is_file()]
    try:
        first = directory / choose(hub_id, there, name)[0]
    except ModelNotFoundError:
        return None
    parts = [first.with_name(part) for part in files.gguf_parts(first.name)]
    return first if all(part.is_file() for part in parts) else None


def expected_blobs(hub_id: str, gguf_name: str = "") -> dict[str, int]:
    """Bytes by the blob's name, of the files that are fetched, as the hub says. Raises what the hub's library
    raises."""
    from huggingface_hub import HfApi

    there = {file.rfilename: file for file in HfApi().model_info(hub_id, files_metadata=True).siblings or ()}
    names = choose(hub_id, list(there), gguf_name) if gguf_name else files.of_a_model(there)
    found = dict[str, int]()
    for name in names:
        file = there[name]
        blob = file.lfs.sha256 if file.lfs is not None else file.blob_id
        if blob:
            found[blob] = file.size or 0
    return found


def bytes_there(hub_id: str, expected: Mapping[str, int]) -> int:
    """Number of the expected bytes that are there, those of unfinished files among them."""
    blobs = repository(hub_id) / "blobs"
    return sum(min(size, _bytes(blobs.glob(f"{name}*"))) for name, size in expected.items())


def remove_leftovers(hub_id: str) -> None:
    """Take away what processes that were killed had fetched of files: the hub's library fetches these from
    their beginnings. Files that another process fetches now are those whose lock it holds."""
    folder = repository(hub_id)
    locks = folder.parent / ".locks" / folder.name
    for path in (folder / "blobs").glob("*.incomplete"):
        if found := LEFTOVER.fullmatch(path.name):
            with contextlib.suppress(OSError):
                _remove_unless_locked(path, locks / f"{found['blob']}.lock")


def _remove_unless_locked(path: Path, lock: Path) -> None:
    """Raises OSError where somebody holds the lock."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)


def size(hub_id: str, gguf_name: str = "") -> int:
    """Bytes of a repository in the cache, or of one GGUF model of it."""
    if not gguf_name:
        return _bytes((repository(hub_id) / "blobs").glob("*"))
    gguf = whole_gguf(hub_id, gguf_name)
    parts = [] if gguf is None else [gguf.with_name(part) for part in files.gguf_parts(gguf.name)]
    return _bytes(part.resolve() for part in parts)


def remove(hub_id: str, gguf: Path | None = None) -> int:
    """Take a repository out of the cache, or one GGUF model of it; returns how many bytes. Raises OSError."""
    folder = repository(hub_id)
    if gguf is None:
        freed = size(hub_id)
        shutil.rmtree(folder)
        return freed
    freed = 0
    for name in files.gguf_parts(gguf.name):
        link = gguf.with_name(name)
        blob = link.resolve()
        freed += _bytes([blob])
        link.unlink(missing_ok=True)
        blob.unlink(missing_ok=True)
    return freed


def _snapshot(hub_id: str) -> Path | None:
    folder = repository(hub_id)
    try:
        directory = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
    except OSError:
        return None
    return directory if directory.is_dir() else None


def _shards(directory: Path) -> set[str]:
    """Names of the weights: of the index, or of what lies there."""
    try:
        weight_map: dict[str, Any] = json.loads((directory / files.INDEX).read_bytes())["weight_map"]
        return set(weight_map.values())
    except OSError:
        names = {path.name for path in directory.iterdir() if files.are_weights(path.name)}
        return names if names == {"model.safetensors"} else set()
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()


def _bytes(paths: Iterable[Path]) -> int:
    """On the drive: a file that is being made has a length before it has bytes."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total
