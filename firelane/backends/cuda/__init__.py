"""The CUDA backend: Triton kernels and library products, captured in one graph for each bucket of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from firelane.backends.contract import Executor
    from firelane.backends.request import ExecutorRequest, ProgressCallback
    from firelane.program.program import Program


def load(program: Program, model_dir: Path, request: ExecutorRequest, progress: ProgressCallback) -> Executor:
    """See loader.load. Its imports wait until then: parts of the package serve without the whole."""
    from firelane.backends.cuda import loader

    return loader.load(program, model_dir, request, progress)
