"""encode and decode: exact for every bit pattern, strict about damaged chunks, the same with and without a
compiler.
"""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from firelane.errors import CheckpointError
from firelane.weights.formats.native import CodecLibrary, codec_library
from firelane.weights.lossless import planes
from firelane.weights.lossless.chunks import CHUNK_BYTES, ENTRY, ChunkEncoder, checksum, decode_chunk
from firelane.weights.lossless.codec import Encoded, decode, encode
from firelane.weights.lossless.zstd import zstd
from tests.weights.files import to_bf16

CHUNK = CHUNK_BYTES // 2


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return to_bf16(np.random.default_rng(seed).standard_normal(shape) * 0.02)


def test_every_bit_pattern() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    np.testing.assert_array_equal(decode(encode(bits)), bits)
    shuffled = np.random.default_rng(0).permutation(bits)
    np.testing.assert_array_equal(decode(encode(shuffled)), shuffled)


@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (3, 0, 2), (7, 5), (2, 3, 4), (CHUNK,), (CHUNK + 1,), (3, CHUNK)]
)
@pytest.mark.parametrize("threads", [1, 3])
def test_every_shape(shape: tuple[int, ...], threads: int) -> None:
    bits = np.random.default_rng(1).integers(0, 2**16, shape, np.uint16)
    encoded = encode(np.asarray(bits, np.uint16), threads=threads)
    decoded = decode(encoded, threads=threads)
    assert (decoded.shape, decoded.dtype) == (shape, np.uint16)
    np.testing.assert_array_equal(decoded, bits)
    assert len(encoded.table) == -(-bits.size // CHUNK)


@given(hnp.arrays(np.uint16, hnp.array_shapes(max_dims=3, max_side=40)))
def test_any_array(bits: np.ndarray) -> None:
    np.testing.assert_array_equal(decode(encode(bits)), bits)


def test_any_layout() -> None:
    bits = normal((60, 90))
    for view in (bits.T, bits[::2, ::-3], np.asfortranarray(bits)):
        np.testing.assert_array_equal(decode(encode(view)), view)


@pytest.mark.parametrize("value", [0, 0x8000, 0x7FC1, 0xFF80, 0x0001])
def test_one_value_takes_little(value: int) -> None:
    bits = np.full(CHUNK, value, np.uint16)
    encoded = encode(bits)
    assert encoded.nbytes < 1.01 * CHUNK
    np.testing.assert_array_equal(decode(encoded), bits)


def test_size_of_normal_weights() -> None:
    bits = normal((1024, 1024))
    assert encode(bits).nbytes <= 0.667 * bits.nbytes


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8, np.dtype(">u2")])
def test_other_dtypes_are_refused(dtype: np.dtype) -> None:
    with pytest.raises(TypeError, match="uint16"):
        encode(np.zeros(4, dtype))


def damaged(**changes: object) -> Encoded:
    return dataclasses.replace(encode(normal((3, CHUNK))), **changes)


def table(*entries: tuple[int, int]) -> np.ndarray:
    return np.array(list(entries), ENTRY)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (3, CHUNK + 1)}, "does not have 3 chunks"),
        ({"shape": (2**40, 2**20)}, "does not have 3 chunks"),
        ({"shape": (-3, -CHUNK)}, "not valid"),
        ({"table": np.zeros(3, np.uint64)}, "not valid"),
        ({"table": table((2**32 - 1, 0), (1, 0), (1, 0))}, "chunk 0 cannot have"),
        ({"table": table((CHUNK, 0), (CHUNK + 5, 0), (CHUNK + 5, 0))}, "chunk 0 cannot have"),
        ({"table": table(*[(CHUNK + 5, 0)] * 3)}, "bytes of data, not the table's"),
        ({"data": np.zeros(3, np.uint16)}, "uint8"),
        ({"data": np.zeros(0, np.uint8)}, "0 bytes of data"),
    ],
)
def test_what_does_not_belong_together(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        decode(damaged(**changes))


@settings(max_examples=200)
@given(st.data())
def test_fuzzed_chunks_are_found(data: st.DataObject) -> None:
    """Cut, changed and random records give an error or the very same weights."""
    bits = normal((data.draw(st.integers(1, 400)),), seed=data.draw(st.integers(0, 9)))
    encoded = encode(bits)
    content = bytearray(encoded.data.tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    if not content:
        return
    stream = np.frombuffer(bytes(content), np.uint8)
    entries = encoded.table.copy()
    entries["stored_bytes"] = len(stream)
    try:
        decoded = decode(Encoded(shape=bits.shape, data=stream, table=entries))
    except CheckpointError:
        return
    np.testing.assert_array_equal(decoded, bits)


def frame(content: bytes, *, content_size: int = 1) -> bytes:
    return zstd.compress(content, options={zstd.CompressionParameter.content_size_flag: content_size})


LIES = {
    "empty": b"",
    "no frame": b"no frame at all, only some text",
    "skippable": (0x184D2A50).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"abcd",
    "too small": frame(bytes(99)),
    "too large": frame(bytes(101)),
    "unknown size": frame(bytes(100), content_size=0),
    "data behind": frame(bytes(100)) + b"x",
    "second frame": frame(bytes(100)) + frame(bytes(100)),
    "cut": frame(np.random.default_rng(0).bytes(100))[:-5],
    # 2^60 bytes of content; then 100 bytes of content and a window of 3.75 TiB, cut.
    "huge size": bytes.fromhex("28b52ffd e0 0000000000000010 010000".replace(" ", "")),
    "huge window": bytes.fromhex("28b52ffd 80 ff 64000000 0b0000".replace(" ", "")),
}


@pytest.mark.parametrize("lie", LIES)
def test_lying_frames_allocate_nothing(lie: str) -> None:
    record = np.frombuffer(bytes(100) + LIES[lie], np.uint8)
    out = np.zeros(200, np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="frame"):
            decode_chunk(record, out, compressed=True, expected=0)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_wrong_checksum() -> None:
    bits = normal((50,))
    record = ChunkEncoder().encode(bits)
    stored = np.frombuffer(b"".join(bytes(b) for b in record.buffers), np.uint8)
    out = np.empty(100, np.uint8)
    decode_chunk(stored, out, compressed=True, expected=checksum(bits))
    with pytest.raises(ValueError, match="checksum"):
        decode_chunk(stored, out, compressed=True, expected=checksum(bits) ^ 1)
    with pytest.raises(ValueError, match="checksum"):
        decode_chunk(out, out.copy(), compressed=False, expected=1)
    with pytest.raises(ValueError, match="99 bytes are stored for 100"):
        decode_chunk(out[:99], out, compressed=False, expected=1)


def library() -> CodecLibrary:
    found = codec_library()
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@pytest.mark.parametrize("n", [0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 2**16])
def test_compiled_planes_are_the_reference(n: int) -> None:
    bits = np.random.default_rng(n).permutation(2**16)[:n].astype(np.uint16)
    got, want = np.zeros((2, n), np.uint8), np.zeros((2, n), np.uint8)
    library().split(bits, *got)
    planes.split_reference(bits, *want)
    np.testing.assert_array_equal(got, want)
    merged = np.zeros((2, n), np.uint16)
    library().merge(*got, merged[0])
    planes.merge_reference(*got, merged[1])
    np.testing.assert_array_equal(merged, [bits, bits])
    counts = np.ones(256, np.int64)
    library().count(bits, counts)
    np.testing.assert_array_equal(counts - 1, planes.count_exponents_reference(bits))


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = normal((300, 100))
    compiled = encode(bits)
    monkeypatch.setattr(planes, "codec_library", lambda: None)
    plain = encode(bits)
    np.testing.assert_array_equal(plain.data, compiled.data)
    np.testing.assert_array_equal(plain.table, compiled.table)
    np.testing.assert_array_equal(decode(plain), bits)
    assert planes.count_exponents(bits.reshape(-1)).sum() == bits.size
