"""Prints facts about compiled attention kernels, beyond those that every kernel is checked for.

    python -m tests.backends.cuda.compiled_attention     a JSON object: case -> facts

layouts: how a row's scores are spread over threads where their maximum and sum are taken. A sum's order, and
so its bits, follows from it: it must not differ between a decoded token and a prompt's.
resident: programs that a device of 100 multiprocessors holds; launched: those of the launch's grid.
"""

from __future__ import annotations

import json
import math
import os
import re

os.environ.pop("TRITON_INTERPRET", None)  # before triton is imported: an interpreting process cannot compile

from tests.backends.cuda.compile_cases.attention import SMS, cases
from tests.backends.cuda.compile_driver import Case, compile_launch, use_no_device

LIKE_OTHERS = ("8B, blocks of 16", "8B, chunks", "70B", "Phi-3", "gpt-oss", "float32, heads of 256")
"""Differ from another case in the mask, the pages or the number of heads alone; compiling takes time."""
_REDUCED = re.compile(r"\}\) : \(tensor<\d+x(?:64|32)xf32, (#\w+)>\)")
_LAYOUT = re.compile(r"^(#\w+) = (#ttg\..*)$", re.MULTILINE)
_ROWS = re.compile(r"(sizePerThread|threadsPerWarp|warpsPerCTA) = \[\d+, ")


def main() -> None:
    use_no_device()
    print(json.dumps({case.name: facts(case) for case in cases() if is_wanted(case.name)}))


def is_wanted(name: str) -> bool:
    kernel, shape = name.split(" ", 1)
    return kernel != "merge_splits" and shape not in LIKE_OTHERS


def facts(case: Case) -> dict[str, object]:
    text = case.launch.compile().asm["ttgir"]
    programs = compile_launch(case.launch).programs
    return {"layouts": layouts(text), "resident": SMS * programs, "launched": math.prod(case.launch.grid)}


def layouts(text: str) -> list[str]:
    """Return the layout of each reduction over a tile's scores, without how its rows are spread."""
    named = dict(_LAYOUT.findall(text))
    return sorted({_ROWS.sub(r"\1 = [rows, ", named[name]) for name in _REDUCED.findall(text)})


if __name__ == "__main__":
    main()
