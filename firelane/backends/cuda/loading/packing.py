"""MatrixPacker: from a matrix's true weights on the device to the form that kernels read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.shapes import ROW_BLOCK
from firelane.backends.cuda.kernels import pack
from firelane.backends.cuda.kernels.matmul import quantised
from firelane.backends.cuda.lowering.placeholder_weights import quantised_placeholder
from firelane.backends.cuda.weights.coded_reference import has_range
from firelane.backends.cuda.weights.escape_codes import bounds_of, zero_escapes
from firelane.backends.cuda.weights.float_codes import is_decodable, write_numbers
from firelane.backends.cuda.weights.matrices import CodedMatrix, Escapes, Matrix, PlainMatrix, QuantisedMatrix
from firelane.backends.cuda.weights.placement import Placement
from firelane.backends.cuda.weights.quantised_weights import Stored, narrowed


class InfiniteWeightsError(Exception):
    """Weights that are infinite or no numbers, in these blocks of rows."""

    def __init__(self, blocks: list[int]) -> None:
        super().__init__(f"infinite weights in blocks {blocks[:3]}")
        self.blocks = blocks


class MatrixPacker:
    """Packs one matrix after the other, in the thread whose stream is the device's. Owns a staging matrix as
    large as the largest that is encoded.
    """

    def __init__(self, device: Device, placed: tuple[Placement, ...]) -> None:
        matrices = [p for p in placed if p.is_matrix]
        blocks = max((p.blocks for p in matrices), default=0)
        staged = max((p.plain_bytes for p in matrices if p.to_coded or p.stored), default=0)
        self._device = device
        self._staging = device.empty(staged // 2, dtype=torch.bfloat16)
        self._found = device.pinned(3 * blocks)  # written by the device
        self._bases = device.pinned(blocks, dtype=torch.uint8)
        self._starts = device.pinned(blocks + 1)

    def place(self, p: Placement) -> Tensor:
        """The place of the true weights: p.dtype [padded_rows, padded_k], padding rows zero already. Of a
        matrix that will be encoded it is valid until the next place()."""
        if p.to_coded:
            target = self._staged(p)
        else:
            target = self._device.empty(p.padded_rows, p.padded_k, dtype=p.dtype)
        for first, last in p.gaps:
            target[first:last].zero_()
        return target

    def pack(self, p: Placement, words: Tensor) -> Matrix:
        """`words`: what place(p) gave, with the weights in it. Raises InfiniteWeightsError."""
        found = self._look(p, words)
        if not p.may_split or not has_range(found[pack.ESCAPES], words.numel()):
            return self._plain(p, self._kept(p, words), self._no_escapes(p))
        bases, escapes = self._lists(found)
        if p.to_coded:
            return self._encode(p, words, bases, escapes)
        matrix = self._plain(p, words, escapes)
        pack.split(matrix, bases).run()
        return matrix

    def place_codes(self, p: Placement, stored: Stored) -> list[Tensor]:
        """Targets of codes, scales, minima and units, as far as there are any: [padded_rows, ..] in
        stored.dtypes, padding rows zero already."""
        sizes = zip(stored.row_bytes(p.padded_k), stored.dtypes, strict=True)
        targets = [
            self._device.empty(p.padded_rows, size // dtype.itemsize, dtype=dtype) for size, dtype in sizes
        ]
        for first, last in p.gaps:
            for target in targets:
                target[first:last].zero_()
        return targets

    def pack_codes(self, p: Placement, arrays: list[Tensor]) -> Matrix:
        """`arrays`: what place_codes() gave, filled. Escapes are those of the matrix that the codes stand
        for. Plain where kernels cannot decode it. Raises InfiniteWeightsError."""
        assert p.stored is not None
        data, scales, *_ = arrays
        if not is_decodable(p.stored.form.numbers, scales):
            plain = replace(p, stored=None)
            write_numbers(data, scales, p.stored.form.numbers, out=(words := self.place(plain)))
            return self.pack(plain, words)
        matrix = self._quantised(p, arrays)
        launch, plain = quantised.decode_matrix(matrix, self._staged(p))
        launch.run()
        found = self._look(p, plain.data)
        if not p.may_split or not has_range(found[pack.ESCAPES], plain.data.numel()):
            return matrix
        bases, escapes = self._lists(found)
        pack.split(replace(plain, escapes=escapes), bases).run()
        matrix = replace(matrix, escapes=escapes)
        if not found[pack.ESCAPES].any():
            return matrix
        if matrix.minima is not None:
            return replace(matrix, bounds=bounds_of(bases))
        zero_escapes(matrix.data, matrix.numbers, escapes)
        return matrix

    def _quantised(self, p: Placement, arrays: list[Tensor]) -> QuantisedMatrix:
        """Without escapes."""
        assert p.stored is not None
        data, scales, *others = arrays
        least = others[0] if p.stored.grouping.minima else None
        units = None
        if p.stored.has_levels:
            count = 1 if least is None else 2
            units = torch.stack([by_block(part) for part in others[-count:]], dim=1)
        else:
            scales, least = narrowed(scales, least)
        return QuantisedMatrix(
            data=data,
            scales=by_block(scales),
            minima=None if least is None else by_block(least),
            units=units,
            bounds=None,
            numbers=p.stored.form.numbers,
            rows=p.weight.height,
            k=p.k,
            escapes=self._no_escapes(p),
        )

    def _staged(self, p: Placement) -> Tensor:
        return self._staging[: p.padded_rows * p.padded_k].view(p.padded_rows, p.padded_k)

    def _look(self, p: Placement, words: Tensor) -> NDArray[np.int32]:
        """The result of pack.find_ranges(); of float32 the last row alone is told."""
        found = self._found[: 3 * p.blocks].view(3, p.blocks)
        if p.dtype is torch.float32:
            pack.count_infinite(words, found).run()
        else:
            pack.find_ranges(words, found).run()
        self._device.mark().wait()
        table: NDArray[np.int32] = found.numpy()
        if table[pack.INFINITE].any():
            raise InfiniteWeightsError(np.nonzero(table[pack.INFINITE])[0].tolist())
        return table

    def _lists(self, found: NDArray[np.int32]) -> tuple[Tensor, Escapes]:
        """Bases and starts on the device, and room for the lists. The pinned tables are free again when the
        next matrix was looked at.
        """
        blocks = found.shape[1]
        bases = self._device.empty(blocks, dtype=torch.uint8)
        starts = self._device.empty(blocks + 1)
        self._bases.numpy()[:blocks] = found[pack.BASE]
        np.cumsum(found[pack.ESCAPES], out=self._starts.numpy()[1 : blocks + 1])
        self._device.upload(bases, self._bases[:blocks])
        self._device.upload(starts, self._starts[: blocks + 1])
        count = max(1, int(self._starts[blocks]))
        where = self._device.empty(count)
        values = self._device.empty(count, dtype=torch.bfloat16)
        return bases, Escapes(starts=starts, where=where, values=values)

    def _encode(self, p: Placement, words: Tensor, bases: Tensor, escapes: Escapes) -> CodedMatrix:
        matrix = CodedMatrix(
            low=self._device.empty(p.padded_rows, p.padded_k, dtype=torch.uint8),
            codes=self._device.empty(p.padded_rows, p.padded_k // 2, dtype=torch.uint8),
            bases=bases,
            rows=p.weight.height,
            k=p.k,
            escapes=escapes,
        )
        pack.encode(words, matrix).run()
        return matrix

    def _kept(self, p: Placement, words: Tensor) -> Tensor:
        """`words`, out of the staging matrix if they lie there."""
        if not p.to_coded:
            return words
        return self._device.empty(p.padded_rows, p.padded_k, dtype=p.dtype).copy_(words)

    def _plain(self, p: Placement, data: Tensor, escapes: Escapes) -> PlainMatrix:
        return PlainMatrix(data=data, rows=p.weight.height, k=p.k, escapes=escapes)

    def _no_escapes(self, p: Placement) -> Escapes:
        return Escapes(
            starts=self._device.zeros(p.padded_rows // ROW_BLOCK + 1),
            where=self._device.zeros(1),
            values=self._device.zeros(1, dtype=p.dtype),
        )


def by_block(rows: Tensor) -> Tensor:
    """Rows [rows, groups] by block: [blocks, groups, ROW_BLOCK]."""
    return rows.view(-1, ROW_BLOCK, rows.shape[1]).transpose(1, 2).contiguous()


def work_ahead(placed: tuple[Placement, ...]) -> list[Launch]:
    """Every kernel that packing these takes, on memory that is not there: to be compiled, not run."""
    work: dict[str, Launch] = {}
    for p in placed:
        if p.is_matrix:
            work |= {launch.name: launch for launch in _launches(p)}
    return list(work.values())


def _launches(p: Placement) -> Iterator[Launch]:
    def meta(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    if p.stored is not None:
        form = replace(p.stored.form, bounds=False)  # they follow from what is decoded
        matrix = quantised_placeholder(form, p.padded_rows, p.weight.height, p.k)
        yield quantised.decode_matrix(matrix, meta(p.padded_rows, p.padded_k, dtype=p.dtype))[0]
    words, found = meta(p.padded_rows, p.padded_k, dtype=p.dtype), meta(3, p.blocks)
    if p.dtype is torch.float32:
        yield pack.count_infinite(words, found)
        return
    yield pack.find_ranges(words, found)
    bases = meta(p.blocks, dtype=torch.uint8)
    escapes = Escapes(starts=meta(p.blocks + 1), where=meta(1), values=meta(1, dtype=torch.bfloat16))
    if p.to_coded:
        low, codes = (meta(p.padded_rows, k, dtype=torch.uint8) for k in (p.padded_k, p.padded_k // 2))
        coded = CodedMatrix(low=low, codes=codes, bases=bases, rows=p.padded_rows, k=p.k, escapes=escapes)
        yield pack.encode(words, coded)
    elif p.may_split:
        yield pack.split(PlainMatrix(data=words, rows=p.padded_rows, k=p.k, escapes=escapes), bases)
