"""Stored: one tensor of a file, by the name that it has there."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from numpy.typing import NDArray

from firelane.weights.lossless.file import PackedFile
from firelane.weights.safetensors import SafetensorsFile


@dataclass(frozen=True)
class Stored:
    """A part of a coded matrix."""

    file: SafetensorsFile | PackedFile
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.file.tensors[self.name].shape

    @property
    def dtype(self) -> str:
        """As safetensors names it."""
        return self.file.tensors[self.name].dtype

    def whole(self) -> NDArray[Any]:
        """See SafetensorsFile.tensor()."""
        return self.file.elements(self.name, 0, prod(self.shape)).reshape(self.shape)

    def rows(self, first: int, last: int, width: int) -> NDArray[Any]:
        """Of the tensor seen as rows of `width`: [last - first, width]."""
        return self.file.elements(self.name, first * width, last * width).reshape(last - first, width)
