"""The files of a safetensors checkpoint: one, or several with an index that says which tensor lies where."""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path
from typing import Any, cast

from firelane.errors import CheckpointError, ModelNotFoundError
from firelane.storage import read_regular

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
GGUF_INDEX = "gguf.json"
"""In a directory whose tensors lie in GGUF files (weights/gguf)."""
MAX_INDEX_BYTES = 64 << 20


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that make up the checkpoint. Raises as Checkpoint.open."""
    return paths_of(directory, weight_map_of(directory))


def weight_map_of(directory: Path, remote: Container[str] = ()) -> dict[str, str]:
    """The file that each tensor lies in, as the index says; {} where there is a single file and no index.
    remote: names of files that lie elsewhere."""
    if (directory / INDEX).is_file():
        return _read_index(directory / INDEX)
    if SINGLE in remote or (directory / SINGLE).is_file():
        return {}
    raise ModelNotFoundError(
        f"{directory}: no {SINGLE} and no {INDEX}; only safetensors checkpoints are supported"
    )


def paths_of(directory: Path, weight_map: dict[str, str], remote: Container[str] = ()) -> list[Path]:
    """The files of a map, sorted; remote: as above. Raises CheckpointError for one that is missing."""
    shards = sorted(set(weight_map.values())) or ([] if (directory / INDEX).is_file() else [SINGLE])
    for shard in shards:
        if shard not in remote and not _is_file(directory / shard):
            raise CheckpointError(f"{directory}: shard {shard[:80]} is missing; download the model again")
    return [directory / shard for shard in shards]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def _read_index(path: Path) -> dict[str, str]:
    try:
        index = json.loads(read_regular(path, MAX_INDEX_BYTES))
        weight_map = cast(dict[Any, Any], index["weight_map"])
        entries = list(weight_map.items())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a valid index: {type(error).__name__}: {error}") from error
    shards = {shard for _, shard in entries if isinstance(shard, str)}  # few, however many tensors
    known = {shard for shard in shards if Path(shard).name == shard}
    for name, shard in entries:
        if not isinstance(shard, str) or shard not in known:
            raise CheckpointError(f"{path}: {name} lies in {str(shard)[:80]!r}, which is not a file name")
    return weight_map
