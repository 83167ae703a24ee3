"""A decoder written from docs/lossless-format.md alone, without Firelane's code, reads what Firelane
packs.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xxhash

from firelane.weights.lossless.pack import pack
from firelane.weights.lossless.zstd import zstd
from tests.weights.files import to_bf16, write_safetensors


def u(data: bytes) -> int:
    return int.from_bytes(data, "little")


def decode_chunk(record: bytes, size: int, form: int) -> bytes:
    if form == 0:
        return record
    m = size // 2
    exponents = zstd.decompress(record[m:])
    assert len(exponents) == m
    out = bytearray()
    for byte, exponent in zip(record[:m], exponents, strict=True):
        turned = exponent << 8 | byte
        out += (turned >> 1 | (turned & 1) << 15).to_bytes(2, "little")
    return bytes(out)


def decode_file(data: bytes) -> bytes:
    n = u(data[:8])
    header = json.loads(data[8 : 8 + n])
    assert header["__metadata__"] == {"format": "firelane-lossless", "version": "1"}

    def stored(name: str) -> bytes:
        begin, end = header[name]["data_offsets"]
        return data[8 + n + begin : 8 + n + end]

    control = stored("firelane_lossless.control")
    assert control[:8] == b"firelane"
    assert u(control[8:12]) == 1
    assert u(control[-8:]) == xxhash.xxh3_64_intdigest(control[:-8])
    assert u(control[48:56]) == xxhash.xxh3_64_intdigest(data[: 8 + n])
    chunk_bytes, size, count, h = u(control[12:16]), u(control[16:24]), u(control[24:32]), u(control[56:64])
    original_header = control[64 : 64 + h]
    original = bytearray(size)
    original[: 8 + h] = h.to_bytes(8, "little") + original_header
    tensors = {k: v for k, v in json.loads(original_header).items() if k != "__metadata__"}
    assert len(tensors) == count
    at = 64 + h + count
    for form, (name, info) in zip(control[64 + h :], tensors.items(), strict=False):
        records = stored(name + ".firelane_lossless" if form else name)
        begin, end = info["data_offsets"]
        for chunk in range(begin, end, chunk_bytes):
            length, digest = u(control[at : at + 4]), u(control[at + 4 : at + 12])
            at += 12
            decoded = decode_chunk(records[:length], min(chunk_bytes, end - chunk), form)
            assert xxhash.xxh3_64_intdigest(decoded) == digest
            original[8 + h + chunk : 8 + h + chunk + len(decoded)] = decoded
            records = records[length:]
    assert at == len(control) - 8
    assert xxhash.xxh3_128_digest(bytes(original)) == control[32:48]
    return bytes(original)


def test_document_is_enough(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"b": 1,  "a": "ä"}', encoding="utf-8")
    (model / "tokenizer.json").write_text("{}")
    tensors = {
        "z": to_bf16(rng.standard_normal((300, 700))),  # more than one chunk
        "norm": to_bf16(np.ones(3)),
        "noise": rng.integers(0, 2**16, (70, 70), np.uint16),
        "empty": np.zeros((0, 4), np.uint16),
        "half": rng.standard_normal((5, 5)).astype(np.float32),
        "a": to_bf16(rng.standard_normal((64, 129))),
    }
    write_safetensors(model / "model.safetensors", tensors)
    pack(model, tmp_path / "packed", threads=1)
    packed = tmp_path / "packed"
    manifest = json.loads((packed / "firelane_lossless.json").read_text())
    config = json.loads((packed / "config.json").read_text())
    assert config.pop("firelane_lossless") == {"version": 1} == {"version": manifest["version"]}
    assert config == json.loads(manifest["config"])
    assert manifest["config"].encode() == (model / "config.json").read_bytes()
    assert set(manifest["files"]) == {"model.safetensors", "tokenizer.json"}
    for name, identity in manifest["files"].items():
        content = (packed / name).read_bytes()
        if name.endswith(".safetensors"):
            assert len(content) < identity["bytes"]
            content = decode_file(content)
        assert len(content) == identity["bytes"]
        assert xxhash.xxh3_128_hexdigest(content) == identity["xxh3_128"]
        assert content == (model / name).read_bytes()
