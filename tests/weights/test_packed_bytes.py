"""The packed bytes of fixed checkpoints, by their digest: they change with the format version alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.formats.formats import Format
from firelane.weights.packing.loader import load_packed
from firelane.weights.storage.files import SINGLE
from tests.models.families import FAMILIES, make_checkpoint, random_tensors
from tests.weights.files import write_safetensors

TRAILER_BYTES = 64
DIGESTS = {
    "llama2 float32": "430dfe0076c1e3bc",
    "llama2 bfloat16": "cf999965f3d6c448",
    "llama2 coded4": "917c27db392f0069",
    "llama2 coded3": "455f68720b2a6bff",
    "llama3 float32": "d0f262eaf1100bbe",
    "llama3 bfloat16": "1166816ba375bf7e",
    "llama3 coded4": "e5b9ae70cffb6c6c",
    "llama3 coded3": "06aaeceaf30cd89a",
    "llama_bias float32": "0ddf1649ae8be3b5",
    "llama_bias bfloat16": "349839bbdba3eecf",
    "llama_bias coded4": "fa3f4fd2b58e6fc3",
    "llama_bias coded3": "1137dfae4d1ae4c5",
    "mistral float32": "9a5e7b0f6f7a2252",
    "mistral bfloat16": "a53ee7d2c9241c5e",
    "mistral coded4": "ce43cdebef814bb9",
    "mistral coded3": "feae2eb5d8636ce7",
    "qwen2 float32": "be39e8038e48b838",
    "qwen2 bfloat16": "6d8b4761b3166b51",
    "qwen2 coded4": "99b3e0b0437c89d3",
    "qwen2 coded3": "c24cd29c9d64ade6",
    "qwen3 float32": "3715ae54fda2c634",
    "qwen3 bfloat16": "995de8f17b160fe2",
    "qwen3 coded4": "d13b816cad8fd257",
    "qwen3 coded3": "b341a1a709bdbe84",
    "gemma2 float32": "d5bb5f8e70d3f6ec",
    "glm4 bfloat16": "119b170bea846049",
    "phi4_mini bfloat16": "30d017a48e4ead03",
}
FORMS = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "coded4": ("bfloat16", Format.PANEL_CODED4),
    "coded3": ("bfloat16", Format.PANEL_CODED3),
}


def payload_digest(path: Path) -> str:
    """Return the digest of a packed file without its manifest, which names the plan."""
    data = path.read_bytes()
    length = int.from_bytes(data[-TRAILER_BYTES + 16 : -TRAILER_BYTES + 24], "little")
    return hashlib.sha256(data[: -TRAILER_BYTES - length]).hexdigest()[:16]


def spread(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Numbers that no generator's version changes: of mixed sign and size, some zero."""
    count = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed << 32)
    mixed = (count * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    size = np.exp2(-(mixed % 7).astype(np.float32) - (mixed % 997 == 0) * np.float32(20))
    return ((mixed % 4001).astype(np.float32) / np.float32(2048) - 1).reshape(shape) * size.reshape(shape)


@pytest.mark.parametrize("case", DIGESTS)
def test_packed_bytes_stay_as_they_are(tmp_path: Path, case: str) -> None:
    family, form = case.split()
    dtype, format_ = FORMS[form]
    model = make_checkpoint(family, dtype, tmp_path / "model")
    names = random_tensors(FAMILIES[family](), 0)
    tensors = {name: spread(t.shape, i) for i, (name, t) in enumerate(sorted(names.items()))}
    write_safetensors(model / SINGLE, tensors, dtype)
    program = load_program(read_config(model))
    forms = {} if format_ is None else {w.name: format_ for w in program.weights}
    packed = load_packed(program, model, tmp_path / "cache", forms=forms)
    assert payload_digest(packed.path) == DIGESTS[case]
