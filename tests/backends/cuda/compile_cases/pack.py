"""Packing at the shapes of an 8 B model's MLP and of its head."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from firelane.backends.cuda.device.shapes import ROW_BLOCK
from firelane.backends.cuda.kernels import pack
from firelane.backends.cuda.weights.matrices import CodedMatrix, Escapes, PlainMatrix
from tests.backends.cuda.compile_driver import WIDE_LOADS, Case, untouched


def cases() -> Iterator[Case]:
    for rows, k in ((28672, 4096), (128256, 4096), (4096, 14336)):
        blocks, words = rows // ROW_BLOCK, untouched(rows, k)
        found = untouched(3, blocks, dtype=torch.int32)
        bases = untouched(blocks, dtype=torch.uint8)
        escapes = Escapes(
            starts=untouched(blocks + 1, dtype=torch.int32),
            where=untouched(4096, dtype=torch.int32),
            values=untouched(4096),
        )
        plain = PlainMatrix(data=words, rows=rows, k=k, escapes=escapes)
        coded = CodedMatrix(
            low=untouched(rows, k, dtype=torch.uint8),
            codes=untouched(rows, k // 2, dtype=torch.uint8),
            bases=bases,
            rows=rows,
            k=k,
            escapes=escapes,
        )
        shape = f"{rows} x {k}"
        yield Case(name=f"find {shape}", launch=pack.find_ranges(words, found), needs=(WIDE_LOADS,))
        yield Case(name=f"split {shape}", launch=pack.split(plain, bases), needs=(WIDE_LOADS,))
        yield Case(name=f"encode {shape}", launch=pack.encode(words, coded), needs=(WIDE_LOADS,))
    values = untouched(4096, 4096, dtype=torch.float32)
    yield Case(name="infinite 4096 x 4096", launch=pack.count_infinite(values, found), needs=(WIDE_LOADS,))
