"""Compiling ahead: kernels, launchers and modules in threads, none left to a first launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from triton.compiler import CompiledKernel

from firelane.backends.cuda.lowering.compilation import compile_all
from firelane.errors import CompilerError


@dataclass(frozen=True)
class Compiled:
    """Work whose compiling gives `kernel`."""

    kernel: Any
    name: str = "some_kernel"

    def run(self) -> None: ...

    def compile(self) -> Any:
        return self.kernel


class TooLarge:
    def _init_handles(self) -> None:
        raise RuntimeError("out of resource: shared memory")


def test_tritons_kernels_are_loaded_by_the_method_that_is_called() -> None:
    assert callable(CompiledKernel._init_handles)


def test_launchers_and_modules_are_made_in_the_threads_that_compile(compiler: Callable[..., Any]) -> None:
    found = compiler("compiled_ahead")
    assert found["kernels"] == 3  # two of them are one for Triton
    assert len(found["launchers"]) == len(found["modules"]) == 2
    assert all(name.startswith("compile") for name in found["launchers"] + found["modules"])


def test_a_kernel_that_does_not_fit_the_device_is_told_before_any_launch() -> None:
    with pytest.raises(CompilerError, match=r"kernel some_kernel .*shared memory"):
        compile_all([Compiled(TooLarge())], threads=1)


@pytest.mark.parametrize("kernel", [None, object()], ids=["interpreted", "of another version"])
def test_kernels_that_cannot_be_loaded_ahead_are_left_to_their_first_launch(kernel: Any) -> None:
    assert compile_all([Compiled(kernel)], threads=1) == 1
