"""DeviceStandby: device memory that goes back to the driver while its engine is in standby.

Tensors stay what they are, and so do the launches that name them: the storage behind them goes and comes.
Weights have a copy in pinned host memory from the first standby on, which they come back from; they never
change, so it is made once. What else is given back is scratch, or belongs to sequences: its content is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor, UntypedStorage

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.faults import translated
from firelane.errors import OutOfMemoryError
from firelane.native.host_memory import available_bytes

GIB = 1 << 30
SPARE_BYTES = 1 << 30
"""Bytes of host memory, left to others: what is pinned cannot be swapped out."""
PIECE_BYTES = 64 << 20
"""Bytes of pinned memory in one piece: the allocator of pinned memory takes the next power of two."""


@dataclass(frozen=True)
class _Copied:
    """A storage of weights, its size, and its bytes on the host, in pieces."""

    storage: UntypedStorage
    nbytes: int
    pieces: tuple[Tensor, ...]

    @classmethod
    def of(cls, storage: UntypedStorage, device: Device) -> _Copied:
        """Started when it returns: to be waited for before the storage goes."""
        source, pieces = _bytes_of(storage), list[Tensor]()
        for part in source.split(PIECE_BYTES):
            pieces.append(device.pinned(len(part), dtype=torch.uint8))
            pieces[-1].copy_(part, non_blocking=True)
        return cls(storage, storage.nbytes(), tuple(pieces))

    def come_back(self, device: Device) -> None:
        """Start the copy, in the stream's order; the pieces live on."""
        self.storage.resize_(self.nbytes)
        target = _bytes_of(self.storage).split(PIECE_BYTES)
        for part, piece in zip(target, self.pieces, strict=True):
            device.upload(part, piece)


class DeviceStandby:
    """weights: an object whose fields, however deep, are the tensors that are kept. scratch: tensors whose
    content is not. Owns the copies; the memory belongs to its tensors."""

    def __init__(self, device: Device, weights: object, scratch: Iterable[Tensor]) -> None:
        self._device = device
        self._weights = _storages(tensors_of(weights))
        self._scratch = [(storage, storage.nbytes()) for storage in _storages(scratch)]
        self._copies: list[_Copied] = []
        self._is_away = False

    @property
    def nbytes(self) -> int:
        """Bytes of the device that go back."""
        return sum(s.nbytes() for s in self._weights) + sum(nbytes for _, nbytes in self._scratch)

    def copy(self) -> None:
        """Have the weights on the host, too. Idempotent. Raises MachineError, OutOfMemoryError where there is
        no room."""
        if self._copies:
            return
        self._check_room()
        with translated("copying weights to host memory"), self._device.on_stream():
            copies = [_Copied.of(storage, self._device) for storage in self._weights]
            self._device.mark().wait()
        self._copies = copies

    def _check_room(self) -> None:
        nbytes, free = sum(storage.nbytes() for storage in self._weights), available_bytes()
        if nbytes + SPARE_BYTES > free:
            raise OutOfMemoryError(
                f"standby keeps {nbytes / GIB:.1f} GiB of weights in host memory, of which "
                f"{free / GIB:.1f} GiB are free: the engine ends in its place"
            )

    def leave(self) -> int:
        """Give the memory back; no work runs on the device, and no graph names it. Returns how many bytes; 0
        where it is away already. Raises as copy(): then nothing has gone."""
        if self._is_away:
            return 0
        self.copy()
        nbytes, self._is_away = self.nbytes, True
        with translated("giving memory back"), self._device.on_stream():
            for storage in (*self._weights, *(storage for storage, _ in self._scratch)):
                storage.resize_(0)
        self._device.trim()
        return nbytes

    def come_back(self) -> None:
        """Have memory again, and the weights in it when it returns. Idempotent. Raises OutOfMemoryError."""
        if not self._is_away:
            return
        with translated("taking memory again"), self._device.on_stream():
            for storage, nbytes in self._scratch:
                storage.resize_(nbytes)
            for copied in self._copies:
                copied.come_back(self._device)
            self._device.mark().wait()
        self._is_away = False


def tensors_of(found: object) -> Iterator[Tensor]:
    """All tensors of a dataclass, mapping or sequence, and of those in it."""
    if isinstance(found, Tensor):
        yield found
    elif is_dataclass(found):
        for field in fields(found):
            yield from tensors_of(getattr(found, field.name))
    elif isinstance(found, Mapping):
        for value in cast(Mapping[Any, Any], found).values():
            yield from tensors_of(value)
    elif isinstance(found, list | tuple):
        for value in cast("list[Any]", found):
            yield from tensors_of(value)


def _storages(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    """Each once: many tensors are views of one. Those without bytes have nothing to give."""
    found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return [storage for storage in found.values() if storage.nbytes()]


def _bytes_of(storage: UntypedStorage) -> Tensor:
    """uint8 [bytes], a view."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
