"""Hostile safetensors: each lie in a header is refused, naming the file and the tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from firelane.errors import CheckpointError
from firelane.weights.storage.safetensors import SafetensorsFile
from tests.weights.files import write_raw, write_safetensors


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def header(**tensors: Any) -> bytes:
    return json.dumps(tensors).encode()


GOOD = header(a=entry())
HOSTILE = {
    "empty": (b"", None, b"", "too short"),
    "header longer than the file": (GOOD, 10_000, bytes(8), "truncated"),
    "header of 2^64 - 1 bytes": (GOOD, 2**64 - 1, bytes(8), "truncated"),
    "header cut": (GOOD, len(GOOD) - 3, bytes(8), "header"),
    "not JSON": (b"{not json", None, b"", "header"),
    "not UTF-8": (b'{"\xff\xfe": 1}', None, b"", "header"),
    "a list": (b"[]", None, b"", "object"),
    "deeply nested": (b"[" * 50_000, None, b"", "header"),
    "huge number": (b'{"a":' + b"9" * 5000 + b"}", None, b"", "header"),
    "same name twice": (
        GOOD[:-1] + b', "a": ' + json.dumps(entry()).encode() + b"}",
        None,
        bytes(8),
        "twice",
    ),
    "entry is a number": (header(a=1), None, b"", "a"),
    "no dtype": (header(a={"shape": [2], "data_offsets": [0, 8]}), None, bytes(8), "dtype"),
    "unknown dtype": (header(a=entry("F128")), None, bytes(8), "F128"),
    "dtype is a list": (
        header(a={"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}),
        None,
        bytes(8),
        "dtype",
    ),
    "negative dimension": (header(a=entry(shape=[-2])), None, bytes(8), "shape"),
    "fractional dimension": (header(a=entry(shape=[2.0])), None, bytes(8), "shape"),
    "boolean dimension": (header(a=entry(shape=[True, 2])), None, bytes(8), "shape"),
    "product that overflows": (header(a=entry(shape=[2**32, 2**32])), None, bytes(8), "a"),
    "a hundred dimensions": (header(a=entry(shape=[1] * 100, offsets=[0, 4])), None, bytes(4), "shape"),
    "shape is text": (header(a=entry() | {"shape": "2"}), None, bytes(8), "shape"),
    "one offset": (header(a=entry(offsets=[0])), None, bytes(8), "data_offsets"),
    "offsets backwards": (header(a=entry(offsets=[8, 0])), None, bytes(8), "data_offsets"),
    "offsets negative": (header(a=entry(offsets=[-8, 0])), None, bytes(8), "data_offsets"),
    "offsets huge": (header(a=entry(offsets=[2**70, 2**70 + 8])), None, bytes(8), "data_offsets"),
    "size and shape differ": (header(a=entry(shape=[3])), None, bytes(8), "a"),
    "past the end": (header(a=entry()), None, bytes(7), "truncated"),
    "bytes left over": (header(a=entry()), None, bytes(9), "after the last"),
    "hole": (header(a=entry(), b=entry(offsets=[12, 20])), None, bytes(20), "hole"),
    "overlap": (header(a=entry(), b=entry(offsets=[4, 12])), None, bytes(12), "overlaps"),
    "same bytes twice": (header(a=entry(), b=entry()), None, bytes(8), "overlaps"),
    "does not start at zero": (header(a=entry(offsets=[8, 16])), None, bytes(16), "hole"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile(tmp_path: Path, case: str) -> None:
    head, length, data, named = HOSTILE[case]
    path = tmp_path / "model.safetensors"
    if case == "empty":
        path.write_bytes(b"")
    else:
        write_raw(path, head, data, length=length)
    with pytest.raises(CheckpointError, match=named) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(cut=st.integers(0, 200))
def test_every_truncation_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "model.safetensors"
    write_safetensors(path, {"a": np.ones((3, 5), np.float32), "b": np.ones(7, np.float32)})
    whole = path.read_bytes()
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(CheckpointError):
        SafetensorsFile(path)


@settings(deadline=None)
@given(at=st.integers(0, 160), byte=st.integers(0, 255))
def test_flipped_header_bytes_never_reach_past_the_file(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    """Either refused, or every tensor can be read whole."""
    path = tmp_path_factory.mktemp("flip") / "model.safetensors"
    write_safetensors(path, {"a": np.ones((3, 5), np.float32), "b": np.ones(7, np.float32)})
    data = bytearray(path.read_bytes())
    data[at] = byte
    path.write_bytes(data)
    try:
        file = SafetensorsFile(path)
        total = sum(file.tensor(name).sum() for name in file.tensors)
    except CheckpointError:
        return
    assert np.isfinite(total)


def test_reads_what_the_reference_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    rng = np.random.default_rng(0)
    tensors = {
        "matrix": rng.standard_normal((5, 3)).astype(np.float32),
        "half": rng.standard_normal((7,)).astype(np.float16),
        "scalar": np.array(3.5, np.float32),
        "nothing": np.zeros((0, 4), np.float32),
    }
    save_file(tensors, path, metadata={"format": "np"})
    file = SafetensorsFile(path)
    assert file.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        np.testing.assert_array_equal(file.tensor(name), values)


def test_the_reference_library_reads_what_tests_write(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    write_safetensors(path, tensors)
    np.testing.assert_array_equal(load_file(path)["a"], tensors["a"])


def test_views_are_read_only_and_outlive_the_file_object(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.ones(3, np.float32)})
    view = SafetensorsFile(path).tensor("a")
    assert view.sum() == 3
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 2


def test_unusable_dtype_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_raw(path, header(a=entry("U16", [4])), bytes(8))
    with pytest.raises(CheckpointError, match="U16"):
        SafetensorsFile(path).tensor("a")
