"""QuantizedTensors: the coded matrices of a checkpoint, presented as the bf16 tensors that they stand for."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.codes import Codes
from firelane.weights.formats.formats import Format
from firelane.weights.quantized.coded import Coded, Packed, Scaled, awq, gptq, read_order
from firelane.weights.quantized.float4 import Blocks, Float4
from firelane.weights.quantized.settings import Settings
from firelane.weights.quantized.stored import CodedPart
from firelane.weights.storage.tensors import RowDecoder, TensorInfo, TensorReader

Parts = Mapping[str, CodedPart]
SUFFIX = re.compile(
    r"(?P<base>.*?)(?:\.(?P<part>weight|weight_scale_inv|weight_scale|weight_scale_2|weight_packed|weight_shape"
    r"|weight_zero_point|weight_global_scale|weight_g_idx|activation_scale|input_scale|input_global_scale"
    r"|input_zero_point|output_scale|q_scale|k_scale|v_scale|prob_scale|qweight|qzeros|scales|g_idx)|_(?P<block>blocks|scales))"
)
OF_ACTIVATIONS = (
    "activation_scale",
    "input_scale",
    "input_global_scale",
    "input_zero_point",
    "output_scale",
    "q_scale",
    "k_scale",
    "v_scale",
    "prob_scale",
)
"""Scales for arithmetic in eight bits, which is not done here."""
KEPT_MATRICES = 8


class QuantizedTensors(RowDecoder):
    """names: of all tensors of the files that it stands in for."""

    def __init__(self, directory: Path, files: Iterable[TensorReader], settings: Settings):
        """Raises CheckpointError where parts are missing or do not fit."""
        self.path = directory
        self.names: set[str] = set()
        self._coded: dict[str, Coded] = {}
        for base, parts in _grouped(files).items():
            try:
                self._add(base, parts, settings)
            except CheckpointError as error:
                raise CheckpointError(f"{directory}: {error}") from None
        if not self._coded:
            raise CheckpointError(
                f"{directory}: config.json (or hf_quant_config.json) has a quantization_config "
                f"({settings.method}), but no tensor is quantised: take it out, or download the model again"
            )
        self.tensors = {
            name: TensorInfo(dtype="BF16", shape=coded.shape, begin=0, end=2 * prod(coded.shape))
            for name, coded in self._coded.items()
        }
        self._kept: OrderedDict[tuple[str, int], NDArray[np.uint16]] = OrderedDict()
        self._kept_codes: OrderedDict[str, Codes] = OrderedDict()
        self._lock = Lock()

    def _add(self, base: str, parts: Parts, settings: Settings) -> None:
        name, coded = _coded(base, parts, settings)
        if coded is not None:
            self._coded[name] = coded
            self.names.update(part.name for part in parts.values())
        else:
            self.names.update(part.name for kind, part in parts.items() if kind in OF_ACTIVATIONS)

    def format(self, name: str) -> Format | None:
        """The packed format that keeps the codes of a quantised matrix; None of others."""
        return self._coded[name].format

    def by_columns(self, name: str) -> bool:
        return self._coded[name].by_columns

    def codes(self, name: str, first: int, last: int) -> Codes:
        """Rows first .. last - 1 of a tensor that has a format(), or columns."""
        coded = self._coded[name]
        if coded.by_rows or coded.by_columns:
            return coded.codes(first, last)
        with self._lock:
            if name not in self._kept_codes:
                self._kept_codes[name] = coded.codes(0, coded.shape[-2])
                while len(self._kept_codes) > KEPT_MATRICES:
                    self._kept_codes.popitem(last=False)
            return self._kept_codes[name].taken(np.arange(first, last))

    def decoded(self, name: str, low: int, high: int) -> NDArray[np.uint16]:
        coded = self._coded[name]
        height = coded.shape[-2]
        found: list[NDArray[np.uint16]] = [np.empty((0, coded.shape[-1]), np.uint16)]
        while low < high:
            matrix = low // height
            stop = min(high, (matrix + 1) * height)
            rows = range(low - matrix * height, stop - matrix * height)
            found.append(self._matrix_rows(name, coded, matrix, rows))
            low = stop
        return np.concatenate(found)

    def _matrix_rows(self, name: str, coded: Coded, matrix: int, rows: range) -> NDArray[np.uint16]:
        if coded.by_rows:
            return bf16_bits(coded.rows(matrix, rows.start, rows.stop))
        return self._whole(name, coded, matrix)[rows.start : rows.stop]

    def _whole(self, name: str, coded: Coded, matrix: int) -> NDArray[np.uint16]:
        """A whole matrix; the last few are kept, for parts of one are asked for one after the other."""
        with self._lock:
            if (name, matrix) not in self._kept:
                self._kept[name, matrix] = bf16_bits(coded.rows(matrix, 0, coded.shape[-2]))
                while len(self._kept) > KEPT_MATRICES:
                    self._kept.popitem(last=False)
            self._kept.move_to_end((name, matrix))
            return self._kept[name, matrix]


def _grouped(files: Iterable[TensorReader]) -> dict[str, dict[str, CodedPart]]:
    """Parts by the name that they have in common; a weight alone is no group."""
    groups: dict[str, dict[str, CodedPart]] = {}
    for file in files:
        for name in file.tensors:
            match = SUFFIX.fullmatch(name)
            if match is not None:
                part = match["part"] or f"_{match['block']}"
                groups.setdefault(match["base"], {})[part] = CodedPart(file, name)
    return {base: parts for base, parts in groups.items() if set(parts) != {"weight"}}


def _coded(base: str, parts: Parts, settings: Settings) -> tuple[str, Coded | None]:
    """The name of the tensor that the parts stand for, and the matrix; None where the parts are of
    activations alone."""
    for key, make in MAKERS.items():
        if key in parts:
            return make(base, parts, settings)
    scale = next((s for s in ("weight_scale_inv", "weight_scale") if s in parts), None)
    if "weight" not in parts or scale is None:
        return base, None
    if parts["weight"].dtype == "U8":
        return f"{base}.weight", _float4(parts, "weight", settings)
    coded = Scaled.find(parts["weight"], parts[scale], parts.get("weight_zero_point"), settings.block)
    return f"{base}.weight", coded


def _of_words(base: str, parts: Parts, settings: Settings) -> tuple[str, Coded]:
    """compressed-tensors' packed numbers: integers in words, or floats in bytes."""
    codes = parts["weight_packed"]
    if codes.dtype == "U8":
        return f"{base}.weight", _float4(parts, "weight_packed", settings)
    scales, shape = _part(base, parts, "weight_scale"), _part(base, parts, "weight_shape")
    rows, columns = (int(n) for n in shape.whole().reshape(-1)[:2])
    words, groups = -(-columns * settings.bits // 32), scales.shape[-1]
    if codes.shape != (rows, words) or scales.shape != (rows, groups) or columns % max(groups, 1):
        raise CheckpointError(
            f"tensor {codes.name}: {list(codes.shape)} words of {settings.bits} bits and scales "
            f"{list(scales.shape)} do not fit {[rows, columns]}"
        )
    zeros, order = parts.get("weight_zero_point"), read_order(parts.get("weight_g_idx"), columns, groups)
    return f"{base}.weight", Packed(codes, scales, zeros, settings.bits, (rows, columns), order)


def _float4(parts: Parts, key: str, settings: Settings) -> Coded:
    codes = parts[key]
    scales = _part(codes.name, parts, "weight_scale")
    shape = (*codes.shape[:-1], codes.shape[-1] * 2)
    if scales.shape[:-1] != codes.shape[:-1] or shape[-1] % max(scales.shape[-1], 1):
        raise CheckpointError(f"tensor {codes.name}: scales {list(scales.shape)} do not fit {list(shape)}")
    divides = "weight_global_scale" in parts
    factor = parts.get("weight_global_scale") or parts.get("weight_scale_2")
    power = scales.dtype == "U8" and settings.method != "modelopt"
    return Float4(codes, scales, shape, power, factor, divides)


def _of_inputs(base: str, parts: Parts, settings: Settings) -> tuple[str, Coded]:
    codes, scales, zeros = (_part(base, parts, key) for key in ("qweight", "scales", "qzeros"))
    if settings.method == "awq":
        return f"{base}.weight", awq(codes, scales, zeros)
    order = parts.get("g_idx")
    return f"{base}.weight", gptq(codes, scales, zeros, order, settings.bits, settings.zero_offset)


def _of_blocks(base: str, parts: Parts, _: Settings) -> tuple[str, Coded]:
    codes, scales = parts["_blocks"], _part(base, parts, "_scales")
    if len(codes.shape) != 4 or codes.shape[-1] != 16 or scales.shape != codes.shape[:-1]:
        raise CheckpointError(f"tensor {codes.name}: {list(codes.shape)} and scales {list(scales.shape)}")
    return base, Blocks(codes, scales)


def _part(base: str, parts: Parts, key: str) -> CodedPart:
    if key not in parts:
        raise CheckpointError(f"tensor {base}.{key} is missing")
    return parts[key]


MAKERS: dict[str, Callable[[str, Parts, Settings], tuple[str, Coded]]] = {
    "weight_packed": _of_words,
    "qweight": _of_inputs,
    "_blocks": _of_blocks,
}
