"""QuantizedOnRead: matrices of a file that are quantised each time that they are read, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.program.recipes import widened
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.codes import Codes
from firelane.weights.formats.formats import Format
from firelane.weights.quantizing.integers import quantize_integers
from firelane.weights.quantizing.native import quantize_library
from firelane.weights.quantizing.schemes import Scheme
from firelane.weights.storage.tensors import RowDecoder, TensorInfo, TensorReader

KEPT_GROUP = 32
"""The number that divides the number of inputs, so that codes are kept in memory."""


class QuantizedOnRead(RowDecoder):
    """Presents those of `names` as the bf16 tensors that their codes stand for. The scheme is one of
    integers, which fits all of them."""

    def __init__(self, file: TensorReader, names: set[str], scheme: Scheme) -> None:
        self.path = file.path
        self._file, self._scheme = file, scheme
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(dtype="BF16", shape=shape, begin=0, end=2 * prod(shape))
            for name in names
            for shape in [file.tensors[name].shape]
        }

    def format(self, name: str) -> Format | None:
        """The packed format that keeps the codes; None where there is none."""
        if self.tensors[name].shape[-1] % KEPT_GROUP:
            return None
        return Format.PANEL_INT4_BF16 if self._scheme.bits == 4 else Format.PANEL_INT8_BF16

    def codes(self, name: str, first: int, last: int) -> Codes:
        """Rows first .. last - 1, all axes but the last taken together. Raises CheckpointError."""
        k = self.tensors[name].shape[-1]
        values = widened(self._file.elements(name, first * k, last * k)).reshape(last - first, k)
        try:
            return quantize_integers(values, self._scheme, quantize_library())
        except ValueError:
            raise CheckpointError(
                f"{self.path}: tensor {name} holds NaN or infinite weights; download the model again"
            ) from None

    def decoded(self, name: str, low: int, high: int) -> NDArray[np.uint16]:
        return bf16_bits(self.codes(name, low, high).values())
