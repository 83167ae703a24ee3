"""Headers of GGUF files, with zeros for the data: the config and the tokenizer that are made of one. All is
read, or refused in one line; tensors lie within the file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np

from firelane.errors import FirelaneError, TokenizerError
from firelane.models.gguf.config import family_of, read_config
from firelane.models.gguf.metadata import Metadata
from firelane.models.gguf.names import sources
from firelane.text.gguf.tokenizer import model_files
from firelane.weights.gguf.header import GgufHeader, read_header
from fuzz.gguf_mutator import mutate_gguf
from fuzz.programs import load_program
from fuzz.target import Target

HERE = Path("model.gguf")
ZEROS = bytes(1 << 20)


def run(data: bytes) -> None:
    """Read and convert the data in the way that a file is opened."""
    data += ZEROS
    header = read_header(HERE, memoryview(data))
    for tensor in header.tensors.values():
        assert header.nbytes <= tensor.begin <= tensor.end <= len(data)
    with contextlib.suppress(TokenizerError):
        model_files(header.metadata)
    _convert(header, data)


def _convert(header: GgufHeader, data: bytes) -> None:
    def numbers(name: str) -> list[float]:
        tensor = header.tensors[name]
        return np.frombuffer(data[tensor.begin : tensor.end // 4 * 4], "<f4").tolist()

    shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
    metadata = Metadata(header.metadata, shapes, numbers)
    config = read_config(metadata, dtype="bfloat16")
    sources(metadata, family_of(metadata))
    load_program(json.loads(json.dumps(config)))


TARGET = Target(run=run, mutate=mutate_gguf, refusals=(FirelaneError,), most_bytes=1 << 13)
