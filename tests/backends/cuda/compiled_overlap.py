"""What the compiler made of kernels that overlap (kernels/overlap.py).

    python -m tests.backends.cuda.compiled_overlap     a JSON object

outside: kernels of a step that do not take part. kernels: case -> facts, of one launch of every kernel that a
step can have, products with weights in either form, fetched ahead or not. ptx, sass: accesses to global
memory, ends of the program and what griddepcontrol became, in order, up to the first behind the wait; early:
whether it may start before the kernel before it has ended; ahead: inputs that are fetched ahead; without:
griddepcontrol and prefetches where it does not overlap; problems: see Resources.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # before triton is imported: an interpreting process cannot compile

import triton

from firelane.backends.cuda.launch import Launch
from tests.backends.cuda.compile_driver import Case, compile_launch, use_no_device
from tests.backends.cuda.small_steps import launches

STEMS = ("rows", "attention", "linear", "sample")
_PTX = re.compile(
    r"^\s*(?:@!?%p\d+\s+)?(griddepcontrol\.\w+|(?:ld|st|atom|red|cp|prefetch)\.[\w.:]+|ret)\b", re.M
)
_SASS = re.compile(
    r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ )?((?:PREEXIT|ACQBULK|EXIT|CCTL|LD|ST|LDG|STG|LDGSTS|ATOM|ATOMG|RED"
    r"|REDG|UBLKCP|UBLKPF|UTMALDG|UTMASTG)\b[\w.]*)"
)
_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def main() -> None:
    use_no_device()
    kinds = [(gemm, window) for gemm in ("invariant", "library") for window in (False, True)]
    work = [launch for gemm, window in kinds for launch in launches(gemm=gemm, window=window)]
    outside = {launch.name for launch in work if "OVERLAP" not in launch.kernel.arg_names}
    with ThreadPoolExecutor(2) as pool:
        kernels = dict(pool.map(_facts, _chosen(work)))
    print(json.dumps({"outside": sorted(outside), "kernels": kernels}))


def _chosen(work: list[Launch]) -> Iterator[Case]:
    """Of compile_cases/ where they have the kernel; else what the small program launches."""
    stems = (importlib.import_module(f"tests.backends.cuda.compile_cases.{stem}") for stem in STEMS)
    cases = [case for stem in stems for case in stem.cases()]
    seen: set[tuple[str, bool, bool]] = set()
    for case in [*cases, *(Case(name=launch.name, launch=launch) for launch in work)]:
        of = case.launch.arguments
        kind = (case.launch.name, of.get("bases") is None, bool(of.get("AHEAD")))
        if kind not in seen and not case.may_spill:
            seen.add(kind)
            yield replace(
                case, name=f"{case.launch.name}: {case.name}", launch=replace(case.launch, overlap=True)
            )


def _facts(case: Case) -> tuple[str, dict[str, Any]]:
    launch = case.launch
    kernel, plain = launch.compile(), replace(launch, overlap=False).compile()
    ptx, without = _accesses(_PTX, kernel.asm["ptx"]), _accesses(_PTX, plain.asm["ptx"])
    return case.name, {
        "early": kernel.metadata.launch_pdl,
        "ahead": launch.arguments.get("AHEAD", 0),
        "ptx": _until_behind(ptx, "griddepcontrol.wait"),
        "sass": _until_behind(_accesses(_SASS, _sass(kernel.asm["cubin"])), "ACQBULK"),
        "without": [name for name in without if name.startswith(("griddepcontrol", "prefetch"))],
        "early_without": plain.metadata.launch_pdl,
        "problems": compile_launch(launch).problems(case),
    }


def _accesses(pattern: re.Pattern[str], text: str) -> list[str]:
    """Parameters, shared memory, and what only ends or awaits copies, are left out."""
    return [name for name in pattern.findall(text) if not _is_local(name)]


def _is_local(name: str) -> bool:
    shared = ".shared" in name and ".global" not in name
    return shared or ".param" in name or name.endswith(("_group", "wait_all"))


def _until_behind(names: list[str], wait: str) -> list[str]:
    end = names.index(wait) + 2 if wait in names else len(names)
    return names[:end]


def _sass(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_CUOBJDUMP), "--dump-sass", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
