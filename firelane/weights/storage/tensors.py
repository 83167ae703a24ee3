"""Readers of tensors by their names: of a file, or of what a file's tensors stand for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from firelane.weights.storage.reader import ReadBuffer


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """The place of a tensor in its file: bytes begin .. end - 1, counted from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorReader(ABC):
    """Reads are safe from many threads. Tensors are float32, float16, integers, or uint16 and uint8 holding
    the bits of bf16 and fp8. A name has to be in `tensors`."""

    __slots__ = ()

    path: Path
    tensors: Mapping[str, TensorInfo]
    is_sampled: ClassVar[bool] = True
    """Whether a fingerprint has only a sample of the content, not checksums of all of it."""

    @abstractmethod
    def elements(
        self, name: str, first: int, last: int, buffer: ReadBuffer | None = None, *, sparse: bool = False
    ) -> NDArray[Any]:
        """Elements first .. last - 1 of the flat tensor, in `buffer` if there is one. `sparse`: only a few of
        them will be looked at. Raises CheckpointError, StoreError."""

    def tensor(self, name: str) -> NDArray[Any]:
        shape = self.tensors[name].shape
        return self.elements(name, 0, prod(shape), sparse=True).reshape(shape)

    def rows(self, name: str, first: int, last: int, buffer: ReadBuffer | None = None) -> NDArray[Any]:
        """Rows first .. last - 1 of tensor(name), along its first axis, as elements() reads them."""
        shape = self.tensors[name].shape
        row = prod(shape[1:])
        return self.elements(name, first * row, last * row, buffer).reshape((last - first, *shape[1:]))


class RowDecoder(TensorReader):
    """Decodes whole rows, whatever is asked for: of matrices that are stored as codes."""

    __slots__ = ()

    def by_columns(self, name: str) -> bool:
        """Whether the codes of a tensor are had by columns of its matrices: those of one, then those of the
        next."""
        del name
        return False

    @abstractmethod
    def decoded(self, name: str, low: int, high: int) -> NDArray[Any]:
        """Rows low .. high - 1, all axes but the last taken together."""

    def elements(
        self, name: str, first: int, last: int, buffer: ReadBuffer | None = None, *, sparse: bool = False
    ) -> NDArray[Any]:
        del sparse
        shape = self.tensors[name].shape
        width = shape[-1] if len(shape) > 1 else 1
        low, high = first // width, -(-last // width)
        values = self.decoded(name, low, high).reshape(-1)[first - low * width : last - low * width]
        if buffer is None:
            return values
        out = buffer.pages[: values.nbytes].view(values.dtype)
        out[:] = values
        return out
