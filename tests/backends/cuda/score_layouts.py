"""How the compiler spreads a row's scores over threads, where their maximum and sum are taken.

    python -m tests.backends.cuda.score_layouts     a JSON object: case -> layouts

A sum's order, and so its bits, follows from the layout along the row. So it must not differ between a decoded
token and a prompt's.
"""

from __future__ import annotations

import json
import os
import re

os.environ.pop("TRITON_INTERPRET", None)  # before triton is imported: an interpreting process cannot compile

from tests.backends.cuda.compile_cases.attention import cases
from tests.backends.cuda.compile_driver import use_no_device

_REDUCED = re.compile(r"\}\) : \(tensor<\d+x64xf32, (#\w+)>\)")
_LAYOUT = re.compile(r"^(#\w+) = (#ttg\..*)$", re.MULTILINE)
_ROWS = re.compile(r"(sizePerThread|threadsPerWarp|warpsPerCTA) = \[\d+, ")


def main() -> None:
    use_no_device()
    found = {
        case.name: layouts(case.launch.compile().asm["ttgir"]) for case in cases() if "merge" not in case.name
    }
    print(json.dumps(found))


def layouts(text: str) -> list[str]:
    """Of each reduction over a tile's scores; how rows are spread is left out."""
    named = dict(_LAYOUT.findall(text))
    return sorted({_ROWS.sub(r"\1 = [rows, ", named[name]) for name in _REDUCED.findall(text)})


if __name__ == "__main__":
    main()
