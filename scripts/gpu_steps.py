"""The steps of gpu_check, the most telling first: what each runs, how long it may take, which packages it
wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KERNELS = ("numpy", "torch", "triton")


@dataclass(frozen=True, kw_only=True)
class Step:
    """command: behind the interpreter; {tables}, {model}, {cache} and {passed} stand for places, {minutes}
    for what the step is given. least_s: what it takes to be worth starting; limit_s: after which it is
    stopped. needs: packages by the name they are imported by. by_request: run only where --only names it.
    always: run in every call, and first: all others depend on it. gpus: that it needs."""

    name: str
    command: tuple[str, ...]
    least_s: float
    limit_s: float
    needs: tuple[str, ...] = KERNELS
    environ: Mapping[str, str] = field(default_factory=dict)
    by_request: bool = False
    always: bool = False
    gpus: int = 1


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
    for name in (
        "draft_model",
        "embed",
        "executor",
        "experts",
        "families",
        "features",
        "gpu_detection",
        "in_flight",
        "loader",
        "loading",
        "product_plan",
        "ranks",
        "quantised",
        "quantised_loading",
        "schedules",
        "state_drafts",
    )
)
# About the interpreter, the compiler without a GPU, and these benchmarks in the interpreter.
HOST_TESTS = tuple(
    f"tests/backends/cuda/test_cuda_{name}.py"
    for name in (
        "interpreter",
        "checker",
        "ptx",
        "compile",
        "compilation",
        "sum_order",
        "attention_compiled",
        "rank_contract",
        "rank_group",
        "bench",
        "bench_serving",
    )
)
# Of engines with tiers and with others beside them: they want what a server does.
PAGES_TESTS = ("tests/backends/cuda/test_cuda_travelling_pages.py",)
NO_KERNEL_TESTS = (*HOST_TESTS, *ENGINE_TESTS, *PAGES_TESTS)
# One worker a test, and none waits for a file. Warnings of packages that are newer than those that the tests
# are run with elsewhere are no failures.
PYTEST = (
    *("-m", "pytest", "-q", "-rN", "--no-header", "--tb=short", "--timeout", "120"),
    *("-n", "auto", "--maxprocesses", "14", "--dist", "worksteal", "-W", "default"),
    *("-o", "cache_dir={cache}/pytest", "-p", "gpu_passed", "--passed", "{passed}"),
)
ON_GPU = {"TRITON_INTERPRET": "0"}
# What a bare machine pays once: the packages' files, the context, and the C compiler for Triton's driver.
WARM_UP = """
import torch, triton
from firelane.backends.cuda.cuda_device import CudaDevice
device = CudaDevice()
print(device.name, device.zeros(4).tolist(), "torch", torch.__version__, "Triton", triton.__version__)
print(triton.runtime.driver.active.get_current_target())
"""
CACHED = ("--cache-dir", "{cache}", "--out", "{tables}")
STEPS = (
    Step(name="warm-up", command=("-c", WARM_UP), least_s=10, limit_s=150, always=True),
    Step(name="limits", command=("benchmarks/cuda_limits.py", "--out", "{tables}"), least_s=15, limit_s=90),
    Step(
        name="kernel-tests",
        command=(*PYTEST, "tests/backends/cuda", *(f"--ignore={f}" for f in NO_KERNEL_TESTS)),
        least_s=45,
        limit_s=220,
        needs=(*KERNELS, *TESTED_WITH),
        environ=ON_GPU,
    ),
    Step(
        name="same-bits",
        command=(
            *("benchmarks/cuda_steps.py", "--layers", "2", "--forms", "bf16", "lossless", "--same-bits"),
            *CACHED,
        ),
        least_s=30,
        limit_s=90,
    ),
    Step(
        name="engine-tests",
        command=(*PYTEST, *ENGINE_TESTS),
        least_s=30,
        limit_s=150,
        needs=(*KERNELS, *TESTED_WITH, "msgspec"),
        environ=ON_GPU,
    ),
    Step(name="steps", command=("benchmarks/cuda_steps.py", *CACHED), least_s=60, limit_s=180),
    Step(
        name="device-tests",
        command=(*PYTEST, "tests/gpu", *PAGES_TESTS),
        least_s=60,
        limit_s=260,
        needs=(*SERVER, *TESTED_WITH),
        environ=ON_GPU,
    ),
    Step(
        name="two-gpus",
        command=(*PYTEST, "tests/gpu/test_gpu_ranks.py"),
        least_s=40,
        limit_s=180,
        needs=(*SERVER, *TESTED_WITH),
        environ=ON_GPU,
        gpus=2,
    ),
    Step(name="kernels", command=("benchmarks/cuda_kernels.py", *CACHED), least_s=60, limit_s=150),
    Step(
        name="serving",
        command=("benchmarks/cuda_serving.py", "--model", "{model}", *CACHED),
        least_s=90,
        limit_s=180,
        needs=SERVER,
    ),
    Step(
        name="start",
        command=("benchmarks/cuda_start.py", "--model", "{model}", "--out", "{tables}"),
        least_s=90,
        limit_s=180,
        needs=SERVER,
    ),
    Step(
        name="transformers",
        command=("benchmarks/cuda_transformers.py", "--out", "{tables}"),
        least_s=60,
        limit_s=150,
        needs=(*KERNELS, "msgspec", "llguidance", "transformers"),
    ),
    Step(
        name="tune",
        command=("benchmarks/cuda_tune.py", "--minutes", "{minutes}", *CACHED),
        least_s=60,
        limit_s=3600,
        by_request=True,
    ),
)
