"""Packed files: a control block (its seal is made right), and chunks with the table that describes them. Each
is read, or refused; nothing is made that is larger than what the figures have been checked against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xxhash

from firelane.errors import CheckpointError
from firelane.weights.lossless.chunks import ENTRY
from firelane.weights.lossless.codec import Encoded, decode
from firelane.weights.lossless.control import MAGIC, SEAL, ControlBlock
from fuzz.draw import Draw
from fuzz.target import Target

HERE = Path("model.safetensors")


def run(data: bytes) -> None:
    if data[:1] == b"k":
        content = MAGIC + data[1:]
        control = ControlBlock.decode(HERE, content + SEAL.pack(xxhash.xxh3_64_intdigest(content)))
        assert control.encode()[: -SEAL.size] == content
        return
    draw = Draw(data[1:])
    shape = tuple(draw.below(300) for _ in range(draw.below(4)))
    chunks = draw.below(4)
    sizes = [(draw.below(700), draw.below(1 << 32)) for _ in range(chunks)]
    stored = np.frombuffer(draw.rest(), np.uint8)
    decode(Encoded(shape=shape, data=stored, table=np.array(sizes, ENTRY)))


TARGET = Target(run=run, refusals=(CheckpointError,), words=(b"\x28\xb5\x2f\xfd", b'{"a":{"dtype":"BF16"'))
