"""Shows how the compiler lays out what a kernel sums up over threads: the order of the sum follows from that.

    python -m tests.backends.cuda.sum_orders

Prints a JSON list of groups of cases that must sum in the same order: by case its sums' operands, each with
its shape and layout. No GPU is needed.
"""

from __future__ import annotations

import json
import os
import re

os.environ.pop("TRITON_INTERPRET", None)  # before triton is imported: an interpreting process cannot compile

import torch

from firelane.backends.cuda.step.tables import StepTables
from tests.backends.cuda.compile_cases import rows
from tests.backends.cuda.compile_driver import Case, untouched, use_no_device
from tests.backends.cuda.host_device import HostDevice


def groups() -> list[list[Case]]:
    """The readers of one value, whole or in whatever parts, in buckets of every size."""
    tables = StepTables.allocate(rows.LIMITS, tile_tokens=16, device=HostDevice())
    op = rows.rope_op(norm=rows.head_norm())
    width = op.qkv.width
    ropes: list[Case] = []
    for n in (1, 256):
        final = untouched(n, width, dtype=torch.float32)
        sources = (final, rows.split_k(width, n, whole=False), rows.split_k(width, n, bias=True, whole=False))
        ropes += [rows.rope(source, tables, op, n) for source in sources]
    return [*(norms(width) for width in (80, 4096)), ropes]


def norms(width: int) -> list[Case]:
    stride = -(-width // 64) * 64
    return [
        rows.norm(source, width, n)
        for n in (1, 256)
        for source in (
            untouched(n, stride, dtype=torch.float32),
            rows.split_k(stride, n, count=2),
            rows.split_k(stride, n, count=9, bias=True),
        )
    ]


def sums(case: Case) -> list[str]:
    text: str = case.launch.compile().asm["ttgir"]
    names = dict(re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE))
    operands = re.findall(r"tt\.reduce\.return .*\n\s*\}\) : \((.*?)\) ->", text)
    return [re.sub(r"#\w+(?!\.)\b", lambda found: names.get(found[0], found[0]), o) for o in operands]


if __name__ == "__main__":
    use_no_device()
    print(json.dumps([[(case.name, sums(case)) for case in group] for group in groups()]))
