"""CodedPart: one tensor of a file, by the name that it has there."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from numpy.typing import NDArray

from firelane.weights.storage.tensors import TensorReader


@dataclass(frozen=True)
class CodedPart:
    """A part of a coded matrix."""

    file: TensorReader
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.file.tensors[self.name].shape

    @property
    def dtype(self) -> str:
        """The dtype as safetensors names it."""
        return self.file.tensors[self.name].dtype

    def whole(self) -> NDArray[Any]:
        """The whole tensor, as SafetensorsFile.tensor() gives it."""
        return self.file.elements(self.name, 0, prod(self.shape)).reshape(self.shape)

    def rows(self, first: int, last: int, width: int) -> NDArray[Any]:
        """Rows first .. last - 1 of the tensor seen as rows of `width`: [last - first, width]."""
        return self.file.elements(self.name, first * width, last * width).reshape(last - first, width)
