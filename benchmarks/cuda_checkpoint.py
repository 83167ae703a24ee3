"""A model directory in Hugging Face layout with random weights, written fast.

cuda_checkpoint.py DIRECTORY [--tiny]

16 GB for Llama-8B's shape, in shards that are made on the GPU where there is one and written by several
threads. The tokenizer is a byte-level one with as many ids as the model has.
"""

from __future__ import annotations

import argparse
import json
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cuda_llama import DEVIATION, LLAMA_8B, TINY, program_of
from random_model import write_tokenizer

from firelane.program.program import Program

SHARDS = 8
PIECE_ELEMENTS = 64 << 20
MARK = "complete"
DTYPE = torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class TensorShape:
    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        product = 1
        for n in self.shape:
            product *= n
        return product

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPE.itemsize


def tensors_of(program: Program) -> list[TensorShape]:
    """All tensors of the checkpoint that the program reads."""
    return [
        TensorShape(name=piece.tensor, shape=piece.shape)
        for weight in program.weights
        for piece in weight.pieces
    ]


def write_model(directory: Path, config: dict[str, Any], *, shards: int = SHARDS) -> int:
    """Returns the bytes of the weights; a directory that is complete already is left as it is."""
    tensors = tensors_of(program_of(config))
    total = sum(t.nbytes for t in tensors)
    mark = directory / MARK
    if mark.exists() and mark.read_text() == str(total):
        return total
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(directory, config["vocab_size"])
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    parts = split_evenly(tensors, shards)
    index = {t.name: name for name, part in zip(names, parts, strict=True) for t in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with ThreadPoolExecutor(shards) as pool:
        work = partial(write_shard, device=device)
        list(pool.map(work, [directory / name for name in names], parts))
    mark.write_text(str(total))
    return total


def split_evenly(tensors: Sequence[TensorShape], shards: int) -> list[list[TensorShape]]:
    """In order, by bytes."""
    total = sum(t.nbytes for t in tensors)
    parts: list[list[TensorShape]] = [[] for _ in range(shards)]
    done = 0
    for tensor in tensors:
        parts[min(shards - 1, done * shards // total)].append(tensor)
        done += tensor.nbytes
    return parts


def write_shard(path: Path, tensors: Sequence[TensorShape], *, device: torch.device) -> None:
    header: dict[str, Any] = {}
    at = 0
    for t in tensors:
        header[t.name] = {"dtype": "BF16", "shape": t.shape, "data_offsets": (at, at + t.nbytes)}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece = min(PIECE_ELEMENTS, max((t.elements for t in tensors), default=1))
    made = torch.empty(piece, dtype=DTYPE, device=device)
    host = torch.empty(piece, dtype=DTYPE, pin_memory=device.type == "cuda")
    with path.open("wb", buffering=0) as file:
        _write_all(file.fileno(), len(text).to_bytes(8, "little") + text)
        for t in tensors:
            random = torch.Generator(device).manual_seed(zlib.crc32(t.name.encode()))
            for first in range(0, t.elements, piece):
                count = min(piece, t.elements - first)
                if len(t.shape) == 1:
                    host[:count].fill_(1.0)
                else:
                    host[:count].copy_(made[:count].normal_(0.0, DEVIATION, generator=random))
                _write_all(file.fileno(), host[:count].view(torch.uint8).numpy())


def _write_all(fd: int, data: Any) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(fd, view) :]


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("directory", type=Path)
    made.add_argument("--tiny", action="store_true", help="a few thousand weights, to try it")
    arguments = made.parse_args()
    nbytes = write_model(arguments.directory, TINY if arguments.tiny else LLAMA_8B)
    print(f"{nbytes / 1e9:.2f} GB in {arguments.directory}")


if __name__ == "__main__":
    main()
