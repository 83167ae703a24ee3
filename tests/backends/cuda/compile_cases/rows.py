"""Kernels of a program a row: norms, rotary embedding, look-up and selection of rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from firelane.backends.cuda.kernels.norm import rms_norm
from firelane.backends.cuda.pending import Pending
from firelane.backends.cuda.tables import NUM_COUNTS, TOKENS
from tests.backends.cuda.compile_driver import WIDE_LOADS, Case, untouched

ROWS = 256


def cases() -> Iterator[Case]:
    counts = untouched(NUM_COUNTS, dtype=torch.int32)
    for width in (1024, 4096, 8192):
        parts = untouched(5, ROWS, width, dtype=torch.float32)
        out, residual = untouched(ROWS, width), untouched(ROWS, width, dtype=torch.float32)
        pending = Pending(parts=parts, width=width, bias=None, residual=residual, out=residual)
        yield Case(
            name=f"rms_norm {width}, 5 parts",
            launch=rms_norm(
                pending,
                untouched(width),
                out,
                width=width,
                eps=1e-5,
                counts=counts,
                count=TOKENS,
                max_rows=ROWS,
            ),
            needs=(WIDE_LOADS,),
        )
