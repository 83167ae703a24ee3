"""Headers of GGUF files: what is read, and what lies is refused in one line."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.errors import CheckpointError
from firelane.weights.gguf.header import read_header

HERE = Path("model.gguf")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with entries of all kinds and three tensors."""
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_bool("llama.flag", True)
    writer.add_string("general.name", "a naïve name")
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "\u2581d", ""])
    writer.add_array("llama.counts", [1, 2, 3])
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("matrix", np.ones((3, 64), np.float16))
    data = gguf.quants.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("coded", data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_entries_and_tensors(whole: bytes) -> None:
    header = read_header(HERE, memoryview(whole))
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["llama.flag"] is True
    assert header.metadata["general.name"] == "a naïve name"
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "bc", "\u2581d", ""]
    assert header.metadata["llama.counts"] == [1, 2, 3]
    assert {name: (t.type.name, t.shape) for name, t in header.tensors.items()} == {
        "vector": ("F32", (5,)),
        "matrix": ("F16", (3, 64)),
        "coded": ("Q8_0", (2, 64)),
    }
    vector = header.tensors["vector"]
    assert np.frombuffer(whole[vector.begin : vector.end], "<f4").tolist() == [0, 1, 2, 3, 4]


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _file(entries: bytes = b"", count: int = 0, tensors: bytes = b"", num_tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, count) + entries + tensors


def _tensor(name: bytes = b"t", sizes: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    axes = struct.pack("<I", len(sizes)) + b"".join(struct.pack("<Q", n) for n in sizes)
    return _string(name) + axes + struct.pack("<IQ", kind, offset)


HUGE = 2**63
HOSTILE: dict[str, tuple[bytes, str]] = {
    "no magic": (b"GGML" + bytes(60), "does not begin with GGUF"),
    "cut in the magic": (b"GG", "magic number is longer than the file"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 "),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
    "cut in the counts": (b"GGUF" + struct.pack("<IQ", 3, 0), "number of metadata entries is longer"),
    "2^63 entries": (_file(count=HUGE), f"{HUGE} metadata entries"),
    "2^63 tensors": (_file(num_tensors=HUGE), f"{HUGE} tensors"),
    "a key of 2^63 bytes": (_file(struct.pack("<Q", HUGE), 1), "a metadata key has"),
    "a string of 2^63 bytes": (
        _file(_string(b"k") + struct.pack("<IQ", 8, HUGE), 1),
        "metadata 'k' is longer than the file",
    ),
    "an array of 2^63 strings": (
        _file(_string(b"k") + struct.pack("<IIQ", 9, 8, HUGE), 1),
        "metadata 'k' is longer than the file",
    ),
    "an array of 2^63 numbers": (
        _file(_string(b"k") + struct.pack("<IIQ", 9, 4, HUGE), 1),
        "metadata 'k' is longer than the file",
    ),
    "arrays of arrays": (_file(_string(b"k") + struct.pack("<IIQ", 9, 9, 1), 1), "an array of arrays"),
    "an unknown type": (_file(_string(b"k") + struct.pack("<I", 77), 1), "of type 77"),
    "a key that is not UTF-8": (_file(_string(b"\xff\xfe") + bytes(8), 1), "codec can't decode"),
    "a key twice": (
        _file((_string(b"k") + struct.pack("<II", 4, 1)) * 2, 2),
        "metadata 'k' stands there twice",
    ),
    "an alignment of 3": (
        _file(_string(b"general.alignment") + struct.pack("<II", 4, 3), 1),
        "general.alignment is 3",
    ),
    "a tensor twice": (_file(tensors=_tensor() * 2, num_tensors=2), "tensor 't' stands there twice"),
    "no axes": (_file(tensors=_tensor(sizes=()), num_tensors=1), "has 0 axes"),
    "nine axes": (_file(tensors=_tensor(sizes=(1,) * 9), num_tensors=1), "has 9 axes"),
    "an axis of nothing": (_file(tensors=_tensor(sizes=(0,)), num_tensors=1), r"shape \[0\]"),
    "an axis of 2^63": (_file(tensors=_tensor(sizes=(HUGE,)), num_tensors=1), "the file is truncated"),
    "an unknown tensor type": (_file(tensors=_tensor(kind=99), num_tensors=1), "of type 99"),
    "a row that is no whole block": (
        _file(tensors=_tensor(sizes=(33,), kind=8), num_tensors=1),
        "rows are of blocks of 32",
    ),
    "an offset behind the end": (
        _file(tensors=_tensor(offset=HUGE), num_tensors=1),
        "the file is truncated",
    ),
    "tensors that overlap": (
        _file(tensors=_tensor(b"a") + _tensor(b"b", offset=8), num_tensors=2) + bytes(64),
        "tensor 'b' overlaps another",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused(name: str) -> None:
    data, says = HOSTILE[name]
    with pytest.raises(CheckpointError, match=says) as error:
        read_header(HERE, memoryview(data))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@given(st.data())
@settings(max_examples=1000, deadline=None, database=None)
def test_mutated_headers_never_crash(whole: bytes, data: st.DataObject) -> None:
    """Whatever is changed, cut or put in, there is a header whose tensors lie in the file, or one line."""
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 600))
        match data.draw(st.integers(0, 2)):
            case 0:
                changed[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case 1:
                changed[at : at + 8] = struct.pack("<Q", data.draw(st.sampled_from([0, 1, 2**31, 2**63 - 1])))
            case _:
                del changed[at : at + data.draw(st.integers(1, 64))]
    ends, said = _read(bytes(changed))
    assert all(end <= len(changed) for end in ends)
    assert "\n" not in said


def _read(data: bytes) -> tuple[list[int], str]:
    """Read a header; return the ends of its tensors, or what is wrong with it."""
    try:
        return [t.end for t in read_header(HERE, memoryview(data)).tensors.values()], ""
    except CheckpointError as error:
        return [], str(error)
