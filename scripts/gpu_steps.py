"""The steps of gpu_check: what each runs, for how long at most, and which packages it wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KERNELS = ("numpy", "torch", "triton")


@dataclass(frozen=True, kw_only=True)
class Step:
    """command: behind the interpreter; {out}, {model} and {cache} stand for directories. needs: packages by
    the name they are imported by. limit_s: seconds after which it is stopped. by_request: run only where
    --only names it."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    needs: tuple[str, ...] = KERNELS
    environ: Mapping[str, str] = field(default_factory=dict)
    by_request: bool = False


TESTED_WITH = ("pytest", "pytest_timeout", "xdist", "hypothesis")
SERVER = (
    *KERNELS,
    "msgspec",
    "httptools",
    "llguidance",
    "python_multipart",
    "tokenizers",
    "uvloop",
    "xxhash",
)
ENGINE_TESTS = tuple(
    f"tests/backends/cuda/test_cuda_{name}.py"
    for name in ("executor", "families", "gpu_detection", "in_flight", "loader", "loading", "schedules")
)
# About the interpreter, the compiler without a GPU, and these benchmarks in the interpreter.
HOST_TESTS = tuple(
    f"tests/backends/cuda/test_cuda_{name}.py"
    for name in (
        "interpreter",
        "checker",
        "ptx",
        "compile",
        "sum_order",
        "attention_compiled",
        "bench",
        "bench_serving",
    )
)
PYTEST = ("-m", "pytest", "-q", "-n", "8", "--no-header", "--tb=short", "-o", "cache_dir={cache}/pytest")
STEPS = (
    Step(name="limits", command=("benchmarks/cuda_limits.py", "--out", "{out}"), limit_s=40),
    Step(
        name="tune",
        command=("benchmarks/cuda_tune.py", "--cache-dir", "{cache}", "--minutes", "6", "--out", "{out}"),
        limit_s=440,
        by_request=True,
    ),
    Step(
        name="kernel-tests",
        command=(*PYTEST, "tests/backends/cuda", *(f"--ignore={f}" for f in (*HOST_TESTS, *ENGINE_TESTS))),
        limit_s=110,
        needs=(*KERNELS, *TESTED_WITH),
        environ={"TRITON_INTERPRET": "0"},
    ),
    Step(
        name="engine-tests",
        command=(*PYTEST, *ENGINE_TESTS),
        limit_s=60,
        needs=(*KERNELS, *TESTED_WITH, "msgspec"),
        environ={"TRITON_INTERPRET": "0"},
    ),
    Step(
        name="device-tests",
        command=(*PYTEST, "tests/gpu"),
        limit_s=90,
        needs=(*SERVER, *TESTED_WITH),
        environ={"TRITON_INTERPRET": "0"},
    ),
    Step(
        name="steps",
        command=("benchmarks/cuda_steps.py", "--cache-dir", "{cache}", "--out", "{out}"),
        limit_s=120,
    ),
    Step(
        name="kernels",
        command=("benchmarks/cuda_kernels.py", "--cache-dir", "{cache}", "--out", "{out}"),
        limit_s=100,
    ),
    Step(
        name="start",
        command=("benchmarks/cuda_start.py", "--model", "{model}", "--out", "{out}"),
        limit_s=120,
        needs=SERVER,
    ),
    Step(
        name="serving",
        command=(
            "benchmarks/cuda_serving.py",
            "--model",
            "{model}",
            "--cache-dir",
            "{cache}",
            "--out",
            "{out}",
        ),
        limit_s=110,
        needs=SERVER,
    ),
    Step(
        name="transformers",
        command=("benchmarks/cuda_transformers.py", "--out", "{out}"),
        limit_s=110,
        needs=(*KERNELS, "msgspec", "llguidance", "transformers"),
    ),
)
