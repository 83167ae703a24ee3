"""Checkpoint: all tensors of a model directory, one safetensors file or several with an index."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from firelane.errors import CheckpointError, ModelNotFoundError
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.safetensors import SafetensorsFile

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
READABLE = {DType.BF16: ("BF16",), DType.F32: ("F32", "BF16", "F16")}  # all exact
UNUSED_SUFFIXES = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # derived from the config


class Checkpoint:
    """Tensors by name. `fingerprint` changes whenever a file is replaced: names, sizes, times and headers are
    in it.
    """

    __slots__ = ("_file_of", "directory", "fingerprint")

    def __init__(self, directory: Path, files: list[SafetensorsFile]) -> None:
        self.directory = directory
        self._file_of: dict[str, SafetensorsFile] = {}
        for file in files:
            for name in file.tensors:
                if name in self._file_of:
                    raise CheckpointError(
                        f"{file.path}: tensor {name} is also in {self._file_of[name].path.name}"
                    )
                self._file_of[name] = file
        self.fingerprint = _fingerprint(files)

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Raises ModelNotFoundError without weights, CheckpointError when they are damaged or incomplete."""
        if (directory / INDEX).is_file():
            return _open_sharded(directory)
        if (directory / SINGLE).is_file():
            return cls(directory, [SafetensorsFile(directory / SINGLE)])
        raise ModelNotFoundError(
            f"{directory}: no {SINGLE} and no {INDEX}; only safetensors checkpoints are supported"
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._file_of)

    def tensor(self, name: str) -> NDArray[Any]:
        """A read-only view: float32, float16, or uint16 holding the bits of bf16."""
        if name not in self._file_of:
            raise CheckpointError(f"{self.directory}: tensor {name} is missing")
        return self._file_of[name].tensor(name)

    def rows(self, name: str, first: int, last: int) -> NDArray[Any]:
        """Rows first .. last - 1 of a tensor of at least one dimension, in `tensor()`'s dtype; read-only, and
        safe from many threads. IndexError when the tensor does not have these rows.
        """
        tensor = self.tensor(name)
        if not 0 <= first <= last <= tensor.shape[0]:
            raise IndexError(f"{name} has {tensor.shape[0]} rows, not rows {first} .. {last - 1}")
        return tensor[first:last]

    def check_against(self, program: Program) -> None:
        """Raises CheckpointError naming missing tensors, wrong shapes and dtypes, and tensors that the model
        does not use.
        """
        problems = [p for weight in program.weights for p in self._problems(weight)]
        used = {name for weight in program.weights for name in weight.tensors} | {"lm_head.weight"}
        problems += [
            f"{name} is not part of this model"
            for name in self.names
            if name not in used and not name.endswith(UNUSED_SUFFIXES)
        ]
        if problems:
            more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise CheckpointError(
                f"{self.directory}: {'; '.join(problems[:3])}{more}: config.json and weights disagree"
            )

    def _problems(self, weight: Weight) -> list[str]:
        problems: list[str] = []
        for name, rows in zip(weight.tensors, weight.parts, strict=True):
            shape = (rows, *weight.shape[1:])
            if name not in self._file_of:
                problems.append(f"tensor {name} is missing")
                continue
            info = self._file_of[name].tensors[name]
            if info.shape != shape:
                problems.append(f"{name} has shape {list(info.shape)}, not {list(shape)}")
            elif info.dtype not in READABLE[weight.dtype]:
                problems.append(f"{name} has dtype {info.dtype}, not {' or '.join(READABLE[weight.dtype])}")
        return problems


def _open_sharded(directory: Path) -> Checkpoint:
    weight_map = _read_index(directory / INDEX)
    files: list[SafetensorsFile] = []
    for shard in sorted(set(weight_map.values())):
        if not (directory / shard).is_file():
            raise CheckpointError(f"{directory}: shard {shard} is missing; download the model again")
        files.append(SafetensorsFile(directory / shard))
    checkpoint = Checkpoint(directory, files)
    tensors_of = {file.path.name: file.tensors for file in files}
    for name, shard in weight_map.items():
        if name not in tensors_of[shard]:
            raise CheckpointError(
                f"{directory / shard}: tensor {name} is missing, but {INDEX} says that it is there"
            )
    return checkpoint


def _read_index(path: Path) -> dict[str, str]:
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        weight_map = cast(dict[Any, Any], index["weight_map"])
        entries = list(weight_map.items())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a valid index: {type(error).__name__}: {error}") from error
    for name, shard in entries:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(f"{path}: {name} lies in {str(shard)[:80]!r}, which is not a file name")
    return weight_map


def _fingerprint(files: list[SafetensorsFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        stat = file.path.stat()
        digest.update(f"{file.path.name}:{stat.st_size}:{stat.st_mtime_ns}:".encode())
        digest.update(hashlib.sha256(file.header).digest())
    return digest.hexdigest()
