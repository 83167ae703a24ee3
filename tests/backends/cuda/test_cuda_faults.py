"""Exceptions of torch, Triton and the driver become errors of Firelane's own."""

from __future__ import annotations

import ast

import pytest
import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from firelane.backends.cuda.device.faults import translated
from firelane.errors import CompilerError, FirelaneError, MachineError, OutOfMemoryError, UsageError

FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which "
    "5.06 MiB is free. Process 712 has 100.00 GiB memory in use. Including non-PyTorch memory, this process "
    "has 39.80 GiB memory in use. Of the allocated memory 39.00 GiB is allocated by PyTorch."
)
ILLEGAL = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in docs"
SOURCE = "def rms_norm(x):\n    y = x @ x\n    return y\n"


def message(error: Exception, expected: type[FirelaneError], kernel: str = "") -> str:
    with pytest.raises(expected) as raised, translated("capturing the graph of 8 rows", kernel=kernel):
        raise error
    assert type(raised.value) is expected
    assert raised.value.__cause__ is error
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_memory_and_who_holds_it() -> None:
    text = message(torch.OutOfMemoryError(FULL), OutOfMemoryError)
    assert "too little memory for capturing the graph of 8 rows; 2.00 GiB were asked for" in text
    assert "5.06 MiB of 139.81 GiB are free; other processes hold 100.00 GiB" in text
    assert "--kv-cache-gib" in text


def test_memory_without_sizes() -> None:
    assert "too little memory" in message(RuntimeError("CUDA error: out of memory\nmore"), OutOfMemoryError)


def test_a_fault_inside_a_graph() -> None:
    for error in (torch.AcceleratorError(ILLEGAL), RuntimeError(ILLEGAL)):
        text = message(error, MachineError)
        assert "failed while capturing the graph of 8 rows: an illegal memory access was encountered;" in text
        assert "dmesg" in text
    driver = RuntimeError("Triton Error [CUDA]: unspecified launch failure")
    assert ": unspecified launch failure;" in message(driver, MachineError, kernel="rms_norm")
    product = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
    assert "CUBLAS_STATUS_NOT_INITIALIZED" in message(product, MachineError)


def test_a_kernel_that_does_not_compile() -> None:
    node = ast.parse(SOURCE).body[0].body[0]  # type: ignore[attr-defined]
    error = CompilationError(SOURCE, node, "ValueError('shapes do not fit: error')")
    text = message(error, CompilerError, kernel="rms_norm")
    assert text.startswith("kernel rms_norm failed to compile: ValueError('shapes do not fit: error')")
    assert "def rms_norm" not in text
    ptxas = PTXASError("`ptxas` failed with error code 255\nptxas fatal   : Unresolved extern function")
    assert "`ptxas` failed with error code 255" in message(ptxas, CompilerError)
    assert "shared memory, Required: 9" in message(OutOfResources(9, 8, "shared memory"), CompilerError)


def test_whatever_a_compiler_raises_is_its_failure() -> None:
    text = message(RuntimeError("PassManager::run failed"), CompilerError, kernel="attend")
    assert text.startswith("kernel attend failed to compile: PassManager::run failed")
    missing = RuntimeError("Failed to find C compiler. Please specify via CC environment variable")
    assert "a C compiler there?" in message(missing, CompilerError, kernel="attend")


def test_a_broken_installation() -> None:
    text = message(ImportError("libcudart.so.13: cannot open shared object file"), MachineError)
    assert "libcudart.so.13" in text
    assert "install torch and triton again" in text


def test_what_is_not_the_devices_passes() -> None:
    for error in (ValueError("shapes"), UsageError("wrong"), KeyboardInterrupt(), RuntimeError("a bug")):
        with pytest.raises(type(error)) as raised, translated("x"):
            raise error
        assert raised.value is error
    with translated("x"):
        pass
