"""One packed file: what is compressed, reads of any rows, every flipped bit, and every lie in its tables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.errors import CheckpointError
from firelane.weights.lossless.control import FIELDS, SEAL, ControlBlock
from firelane.weights.lossless.file import LosslessFile, open_weights
from firelane.weights.lossless.marks import CONTROL, STREAM_SUFFIX
from firelane.weights.lossless.original import original_bytes
from firelane.weights.lossless.output import OutputFile
from firelane.weights.lossless.writer import FilePacker, Rule
from firelane.weights.storage import reader
from firelane.weights.storage.safetensors import SafetensorsFile
from tests.weights.files import to_bf16, write_raw, write_safetensors

SMALL = Rule(min_weights=16, chunk_bytes=1024)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return to_bf16(np.random.default_rng(seed).standard_normal(shape) * 0.02)


def pack_file(source: Path, out: Path, rule: Rule = SMALL, *, threads: int = 1) -> LosslessFile:
    fd, to = os.open(source, os.O_RDONLY), os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        FilePacker(SafetensorsFile(source), fd, OutputFile(to), rule=rule).run(
            lambda _: None, threads=threads
        )
    finally:
        os.close(fd)
        os.close(to)
    file = open_weights(out)
    assert isinstance(file, LosslessFile)
    return file


def decoded(file: LosslessFile, *, threads: int = 1) -> bytes:
    return b"".join(bytes(piece) for piece in original_bytes(file, threads=threads))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """bf16 matrices that gain and that do not, other dtypes, vectors, nothing at all."""
    rng = np.random.default_rng(3)
    tensors = {
        "b": normal(40, 33),
        "norm": normal(8),
        "noise": rng.integers(0, 2**16, (40, 20), np.uint16),
        "f": rng.standard_normal((6, 5)).astype(np.float32),
        "empty": np.zeros((0, 3), np.uint16),
        "a": normal(3, 4, 50),
        "vector": normal(501),
    }
    write_safetensors(tmp_path / "source.safetensors", tensors)
    return tmp_path / "source.safetensors"


@pytest.mark.parametrize("rule", [SMALL, Rule(min_weights=1, max_share=9.0), Rule(min_weights=1000), Rule()])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_file_comes_back(source: Path, tmp_path: Path, rule: Rule, threads: int) -> None:
    file = pack_file(source, tmp_path / "packed.safetensors", rule, threads=threads)
    assert decoded(file, threads=threads) == source.read_bytes()
    plain = SafetensorsFile(source)
    assert file.tensors == plain.tensors
    for name in plain.tensors:
        np.testing.assert_array_equal(file.tensor(name), plain.tensor(name))
        assert file.tensor(name).dtype == plain.tensor(name).dtype


def test_rule(source: Path, tmp_path: Path) -> None:
    file = pack_file(source, tmp_path / "packed.safetensors", Rule(min_weights=501))
    assert {n for n in file.tensors if file.table(n).compressed} == {"b", "a", "vector"}
    file = pack_file(source, tmp_path / "packed.safetensors", Rule(min_weights=502))
    assert {n for n in file.tensors if file.table(n).compressed} == {"b", "a"}


def test_other_readers_open_it_and_see_that_it_is_packed(source: Path, tmp_path: Path) -> None:
    file = pack_file(source, tmp_path / "packed.safetensors")
    with safetensors.safe_open(file.path, "np") as opened:
        assert opened.metadata() == {"format": "firelane-lossless", "version": "1"}
        assert {"b" + STREAM_SUFFIX, "f", CONTROL} <= set(opened.keys())
        np.testing.assert_array_equal(opened.get_tensor("f"), SafetensorsFile(source).tensor("f"))
    outer = SafetensorsFile(file.path)
    assert all(info.begin % 4 == 0 for info in outer.tensors.values() if info.dtype == "F32")


def test_file_without_tensors(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "s", {})
    file = pack_file(tmp_path / "s", tmp_path / "p")
    assert decoded(file) == (tmp_path / "s").read_bytes()


@pytest.mark.parametrize("name", [CONTROL, "a" + STREAM_SUFFIX])
def test_names_that_the_format_needs(tmp_path: Path, name: str) -> None:
    entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    write_raw(tmp_path / "s", json.dumps({name: entry}).encode(), b"x")
    with pytest.raises(CheckpointError, match="needs this name"):
        pack_file(tmp_path / "s", tmp_path / "p")


@settings(max_examples=60)
@given(st.data())
def test_any_rows(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 70))
    bits = normal(rows, columns, seed=rows)
    where = tmp_path_factory.mktemp("rows")
    write_safetensors(where / "s", {"other": normal(100), "w": bits})
    file = pack_file(
        where / "s",
        where / "p",
        replace(SMALL, max_share=9.0, chunk_bytes=data.draw(st.sampled_from([8, 64, 1024, 4096]))),
    )
    for _ in range(5):
        first = data.draw(st.integers(0, rows))
        last = data.draw(st.integers(first, rows))
        np.testing.assert_array_equal(file.rows("w", first, last), bits[first:last])
        buffer = reader.ReadBuffer(bits.nbytes)
        read = file.rows("w", first, last, buffer)
        np.testing.assert_array_equal(read, bits[first:last])
        assert first == last or np.shares_memory(read, buffer.pages)


@pytest.mark.parametrize("direct", [False, True])
def test_rows_from_many_threads_and_several_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """Both ways to read, in pieces; O_DIRECT where the file system has it."""
    monkeypatch.setattr(reader, "_is_cached", lambda _: not direct)
    bits = normal(3000, 999)
    write_safetensors(tmp_path / "s", {"norm": normal(77), "w": bits})
    file = pack_file(tmp_path / "s", tmp_path / "p", Rule())
    assert file.table("w").record_bytes > 3 << 20
    spans = [(first, min(first + 700, 3000)) for first in range(0, 3000, 123)]
    with ThreadPoolExecutor(4) as pool:
        for (first, last), rows in zip(spans, pool.map(lambda s: file.rows("w", *s), spans), strict=True):
            np.testing.assert_array_equal(rows, bits[first:last])
    np.testing.assert_array_equal(file.tensor("w"), bits)
    assert decoded(file) == (tmp_path / "s").read_bytes()


def test_reads_only_the_chunks_that_it_needs(tmp_path: Path) -> None:
    bits = normal(64, 256)
    write_safetensors(tmp_path / "s", {"w": bits})
    packed = pack_file(tmp_path / "s", tmp_path / "p")
    place = SafetensorsFile(packed.path).tensors["w" + STREAM_SUFFIX].begin + int(
        packed.table("w").offsets[5]
    )
    flip(packed.path, place)
    file = open_weights(packed.path)
    np.testing.assert_array_equal(file.rows("w", 0, 10), bits[:10])
    np.testing.assert_array_equal(file.rows("w", 12, 64), bits[12:])
    with pytest.raises(CheckpointError, match="tensor w, chunk 5: the checksum is wrong"):
        file.rows("w", 0, 11)


def flip(path: Path, byte: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


def test_every_flipped_bit_is_found_or_harmless(tmp_path: Path) -> None:
    """All bits of a file with compressed and plain tensors: an error, or exactly the original bytes."""
    tensors = {"w": normal(6, 100), "norm": normal(9), "f": np.ones((2, 2), np.float32)}
    write_safetensors(tmp_path / "s", tensors)
    want = (tmp_path / "s").read_bytes()
    packed = pack_file(tmp_path / "s", tmp_path / "p", Rule(min_weights=16, chunk_bytes=800))
    assert packed.table("w").compressed
    assert len(packed.table("w").checksums) == 2
    path = packed.path
    content = bytearray(path.read_bytes())
    harmless: list[int] = []
    with path.open("r+b", buffering=0) as file:
        for at, value in enumerate(content):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([value ^ 1 << bit]), at)
                try:
                    opened = open_weights(path)
                    assert isinstance(opened, LosslessFile), f"byte {at}, bit {bit}: taken for a plain file"
                    got = decoded(opened)
                except CheckpointError:
                    continue
                assert got == want, f"byte {at}, bit {bit} changes the weights"
                harmless.append(at)
            os.pwrite(file.fileno(), bytes([value]), at)
    assert len(harmless) < len(content) * 8 // 100  # padding, and bits of frames that say nothing
    assert decoded(open_weights(path)) == want


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1, -9, -300])
def test_truncated(source: Path, tmp_path: Path, keep: int) -> None:
    path = pack_file(source, tmp_path / "p").path
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError):
        open_weights(path)


def test_truncated_after_it_was_opened(source: Path, tmp_path: Path) -> None:
    file = pack_file(source, tmp_path / "p")
    os.truncate(file.path, 4000)
    with pytest.raises(CheckpointError, match="the file ends at byte"):
        decoded(file)


def rebuild(path: Path, edit: Callable[[dict[str, Any], bytearray], None]) -> None:
    """Change header and control block, then seal both again, as somebody who means harm would."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    begin, end = (8 + size + offset for offset in header[CONTROL]["data_offsets"])
    control = bytearray(content[begin : end - SEAL.size])
    edit(header, control)
    text = json.dumps(header).encode()
    text = len(text).to_bytes(8, "little") + text
    control[48:56] = SEAL.pack(xxhash.xxh3_64_intdigest(text))
    control += SEAL.pack(xxhash.xxh3_64_intdigest(bytes(control)))
    path.write_bytes(text + content[8 + size : begin] + bytes(control) + content[end:])


def field(at: int, value: int, size: int) -> Callable[[dict[str, Any], bytearray], None]:
    def edit(_: dict[str, Any], control: bytearray) -> None:
        control[at : at + size] = value.to_bytes(size, "little")

    return edit


def rename(old: str, new: str | None) -> Callable[[dict[str, Any], bytearray], None]:
    def edit(header: dict[str, Any], _: bytearray) -> None:
        entry = header.pop(old)
        if new is not None:
            header[new] = entry

    return edit


def set_metadata(key: str, value: Any) -> Callable[[dict[str, Any], bytearray], None]:
    return lambda header, _: header["__metadata__"].update({key: value})


def first_form(header: dict[str, Any], control: bytearray) -> int:
    del header
    return FIELDS.size + int.from_bytes(control[56:64], "little")


def set_form(index: int, form: int) -> Callable[[dict[str, Any], bytearray], None]:
    def edit(header: dict[str, Any], control: bytearray) -> None:
        control[first_form(header, control) + index] = form

    return edit


def set_entry(value: int) -> Callable[[dict[str, Any], bytearray], None]:
    def edit(header: dict[str, Any], control: bytearray) -> None:
        at = first_form(header, control) + 7
        control[at : at + 4] = value.to_bytes(4, "little")

    return edit


def swap_streams(header: dict[str, Any], _: bytearray) -> None:
    header["a" + STREAM_SUFFIX]["data_offsets"], header["b" + STREAM_SUFFIX]["data_offsets"] = (
        header["b" + STREAM_SUFFIX]["data_offsets"],
        header["a" + STREAM_SUFFIX]["data_offsets"],
    )


LIES: dict[str, tuple[Callable[[dict[str, Any], bytearray], None], str]] = {
    "nothing": (field(8, 1, 4), ""),
    "other format": (set_metadata("format", "pt"), "no packed file"),
    "newer version": (set_metadata("version", "2"), "version '2'.*update"),
    "version of another type": (set_metadata("version", 1), "version '1'"),
    "no metadata": (rename("__metadata__", None), "no packed file"),
    "no control block": (rename(CONTROL, "c"), "control block is missing"),
    "stream under another name": (rename("a" + STREAM_SUFFIX, "x" + STREAM_SUFFIX), "is missing or not U8"),
    "plain tensor under another name": (rename("norm", "x"), "norm is missing or not BF16"),
    "streams exchanged": (swap_streams, "does not fill data_offsets"),
    "bad magic": (field(0, 0, 8), "control block is not valid"),
    "newer control block": (field(8, 2, 4), "version 2.*update"),
    "chunks of nothing": (field(12, 0, 4), "chunks of 0 bytes"),
    "odd chunks": (field(12, 63, 4), "chunks of 63 bytes"),
    "huge chunks": (field(12, 2**32 - 8, 4), "chunks of 4294967288 bytes"),
    "other chunks": (field(12, 512, 4), "does not fit"),
    "small file": (field(16, 100, 8), "original header"),
    "huge file": (field(16, 2**63 - 1, 8), "after the last tensor"),
    "larger than any file": (field(16, 2**64 - 1, 8), "original header"),
    "too many tensors": (field(24, 2**64 - 1, 8), "does not fit"),
    "huge header": (field(56, 2**64 - 1, 8), "original header of"),
    "cut header": (field(56, 100, 8), "header is not valid"),
    "unknown form": (set_form(0, 2), "in form 2"),
    "plain is not compressed": (set_form(1, 1), "cannot have|is missing or not U8"),
    "float is not compressed": (set_form(3, 1), "F32 in form 1"),
    "compressed is not plain": (set_form(0, 0), "cannot have"),
    "huge chunk": (set_entry(2**32 - 1), "chunk 0 cannot have 4294967295 bytes"),
    "empty chunk": (set_entry(0), "chunk 0 cannot have 0 bytes"),
    "other size of a chunk": (set_entry(530), "is missing or not U8|damaged|frame"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies(source: Path, tmp_path: Path, lie: str) -> None:
    path = pack_file(source, tmp_path / "p").path
    edit, message = LIES[lie]
    rebuild(path, edit)
    if lie == "nothing":
        assert decoded(open_weights(path)) == source.read_bytes()
        return
    with pytest.raises(CheckpointError, match=message) as caught:
        decoded(open_weights(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_extra_tensor(source: Path, tmp_path: Path) -> None:
    path = pack_file(source, tmp_path / "p").path

    def add(header: dict[str, Any], _: bytearray) -> None:
        at = header["b" + STREAM_SUFFIX]["data_offsets"][0]
        header["extra"] = {"dtype": "U8", "shape": [0], "data_offsets": [at, at]}

    rebuild(path, add)
    with pytest.raises(CheckpointError, match="extra is not part of what was packed"):
        open_weights(path)


@settings(max_examples=300)
@given(block=st.binary(max_size=300), seal=st.booleans(), magic=st.booleans())
def test_any_control_block_gives_a_clear_error(block: bytes, seal: bool, magic: bool) -> None:
    if magic:
        block = b"firelane" + (1).to_bytes(4, "little") + (64).to_bytes(4, "little") + block
    if seal:
        block += SEAL.pack(xxhash.xxh3_64_intdigest(block))
    with pytest.raises(CheckpointError):
        ControlBlock.decode(Path("p"), block)
