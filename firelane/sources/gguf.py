"""A GGUF file as a model directory: config, tokenizer and an index of the tensors, made once and kept in the
cache. The weights stay in the file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from firelane.errors import CacheError, CheckpointError, ModelNotFoundError, UnsupportedModelError
from firelane.models.gguf.config import family_of, read_config
from firelane.models.gguf.metadata import Metadata
from firelane.models.gguf.names import TensorSource, sources
from firelane.sources.files import gguf_parts
from firelane.storage import cache_directory, write_whole
from firelane.text.gguf.tokenizer import model_files
from firelane.weights.gguf.blocks import DECODERS
from firelane.weights.gguf.header import StoredTensor
from firelane.weights.gguf.index import (
    VERSION,
    File,
    Index,
    OpenedFile,
    Tensor,
    mapped,
    open_header,
    read_index,
    write_index,
)
from firelane.weights.storage.files import GGUF_INDEX

CONVERSION = 6
"""The version of what is written: part of the directory's name."""
PLAIN = {"F32": "float32", "F16": "float16"}
"""Types that whole files may have, and what config.json calls them; all others are served as bf16."""


def is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf"


def model_directory(path: Path, cache_dir: Path) -> Path:
    """The directory of the model in the file at `path`, the first one where it is split. Raises
    ModelNotFoundError, CheckpointError, UnsupportedModelError, TokenizerError, CacheError."""
    paths = _parts(path)
    key = hashlib.sha256("\n".join([str(CONVERSION), *map(str, paths)]).encode()).hexdigest()[:16]
    directory = cache_dir / "gguf" / f"{path.stem[:80]}-{key}"
    index = read_index(directory)
    if index is None or not index.is_current:
        try:
            _convert(paths, directory)
        except OSError as error:
            raise CacheError(
                f"{directory}: cannot be written: {error.strerror}; make room, or set FIRELANE_CACHE_DIR to "
                "another directory"
            ) from error
        except (UnsupportedModelError, CheckpointError) as error:
            raise type(error)(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None
    return directory


def _parts(path: Path) -> list[Path]:
    """All files of a split model, resolved. Raises ModelNotFoundError for one that is missing."""
    paths = [path.with_name(name) for name in gguf_parts(path.name)]
    missing = next((p for p in paths if not p.is_file()), None)
    if missing is not None or not paths:
        more = "" if len(paths) == 1 else ", and all parts of the model are needed"
        raise ModelNotFoundError(f"{missing or path}: no such file{more}")
    return [p.resolve() for p in paths]


def _convert(paths: Sequence[Path], directory: Path) -> None:
    files = [open_header(path) for path in paths]
    stored = _stored(files)
    entries = files[0].header.metadata
    metadata = Metadata(
        entries,
        {name: tensor.shape for name, (_, tensor) in stored.items()},
        lambda name: _numbers(*stored[name]),
    )
    family = family_of(metadata)
    dtype = _dtype(tensor for _, tensor in stored.values())
    config = read_config(metadata, dtype=dtype)
    tensors = sources(metadata, family)
    written = model_files(entries) | {"config.json": json.dumps(config, indent=1).encode()}
    cache_directory(directory.parent)
    cache_directory(directory)
    (directory / GGUF_INDEX).unlink(missing_ok=True)
    for name, data in written.items():
        write_whole(directory / name, data)
    write_index(directory, _index(files, stored, tensors, matrices=_code(dtype)))


def _stored(files: Sequence[OpenedFile]) -> dict[str, tuple[OpenedFile, StoredTensor]]:
    """The tensors of all files. Raises CheckpointError where one is in two files, or a file is missing."""
    count = files[0].header.metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1 and count != len(files):
        raise CheckpointError(
            f"{files[0].path}: is the first of {count} parts: name it as they are published"
        )
    found: dict[str, tuple[OpenedFile, StoredTensor]] = {}
    for file in files:
        for name, tensor in file.header.tensors.items():
            if name in found:
                raise CheckpointError(f"{file.path}: tensor {name} is also in {found[name][0].path.name}")
            if tensor.type.name not in DECODERS and tensor.type.name not in ("F32", "F16", "BF16"):
                raise UnsupportedModelError(
                    f"tensor {name} is stored as {tensor.type.name}, which is not supported; supported: "
                    f"F32, F16, BF16, {', '.join(DECODERS)}"
                )
            found[name] = file, tensor
    return found


def _numbers(file: OpenedFile, tensor: StoredTensor) -> list[float]:
    if tensor.type.name != "F32":
        raise UnsupportedModelError(f"a vector of the config is stored as {tensor.type.name}, not F32")
    with mapped(file.path) as (data, _):
        return np.frombuffer(data[tensor.begin : tensor.end], "<f4").tolist()


def _dtype(tensors: Any) -> str:
    """The dtype of the matrices: as most of them are stored, unless they are quantised."""
    kinds = {tensor.type.name for tensor in tensors if len(tensor.shape) > 1}
    for kind in ("F16", "F32"):
        if kind in kinds and kinds <= set(PLAIN):
            return PLAIN[kind]
    return "bfloat16"


def _code(dtype: str) -> str:
    return {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[dtype]


def _index(
    files: Sequence[OpenedFile],
    stored: Mapping[str, tuple[OpenedFile, StoredTensor]],
    tensors: Mapping[str, TensorSource],
    *,
    matrices: str,
) -> Index:
    of_file: dict[Path, dict[str, Tensor]] = {file.path: {} for file in files}
    for name, source in tensors.items():
        file, tensor = stored[source.stored]
        is_matrix = len(source.shape) > 1 and not source.exact
        of_file[file.path][name] = _tensor(source, tensor, matrices if is_matrix else "F32")
    return Index(
        version=VERSION,
        files=[
            File(
                path=str(file.path),
                stamp=file.stamp,
                header_bytes=file.header.nbytes,
                tensors=of_file[file.path],
            )
            for file in files
        ],
    )


def _tensor(source: TensorSource, tensor: StoredTensor, dtype: str) -> Tensor:
    """Rows of a vector are single numbers. Raises UnsupportedModelError where those of the model cannot be
    read as they are stored."""
    width = tensor.shape[-1] if len(tensor.shape) > 1 else 1
    begin, end = (
        tensor.begin + row * width // tensor.type.size * tensor.type.nbytes
        for row in (source.first, source.last)
    )
    assert prod(source.shape) == (source.last - source.first) * width, source
    if (source.shape[-1] if len(source.shape) > 1 else 1) % tensor.type.size:
        raise UnsupportedModelError(
            f"tensor {source.stored} has shape {list(source.shape)} and is stored as {tensor.type.name}, "
            f"whose blocks are of {tensor.type.size} inputs"
        )
    return Tensor(
        stored=source.stored,
        type=tensor.type.number,
        begin=begin,
        end=end,
        shape=source.shape,
        dtype=dtype,
        view=source.order.view,
        order=source.order.order,
        kept=source.order.kept,
        inputs=source.order.inputs,
        minus=source.minus,
        decay=source.decay,
    )
