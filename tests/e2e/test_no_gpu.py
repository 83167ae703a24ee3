"""--backend on machines whose GPU is missing, or that a made-up driver shows, as a user meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firelane import LLM
from firelane.backends.cuda.device import gpu_detection
from firelane.errors import MachineError
from tests.backends.cuda.test_cuda_gpu_detection import DEFAULTS, SOURCE

pytestmark = pytest.mark.skipif(not gpu_detection.detect().problem, reason="there is a GPU here")


@pytest.fixture
def old_gpu(tmp_path: Path) -> dict[str, str]:
    """An environment whose driver shows a GPU of compute capability 7.5."""
    macros = [f"-D{name}={value}" for name, value in (DEFAULTS | {"MAJOR": 7}).items()]
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["g++", "-shared", "-fPIC", *macros, "-o", str(library), str(SOURCE)], check=True)
    (tmp_path / "libnvidia-ml.so.1").symlink_to(library)
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}


def firelane(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "firelane", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environ)


@pytest.mark.parametrize(
    "arguments", [("serve", "--port", "0"), ("generate", "--prompt", "a")], ids=["serve", "generate"]
)
def test_cuda_without_a_gpu_ends_with_one_line(arguments: tuple[str, ...]) -> None:
    done = firelane(*arguments, "--backend", "cuda")
    assert done.returncode == 1
    assert "--backend cuda: no NVIDIA GPU is in this machine" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_cuda_without_a_gpu_in_python() -> None:
    with pytest.raises(MachineError, match="no NVIDIA GPU"):
        LLM(backend="cuda")


def test_a_gpu_that_is_too_old_is_named(old_gpu: dict[str, str]) -> None:
    done = firelane("generate", "--prompt", "a", "--backend", "cuda", environ=old_gpu)
    assert done.returncode == 1
    assert "Fake H200 has compute capability 7.5, and at least 8.0 is needed" in done.stderr


def test_auto_serves_on_the_cpu_all_the_same(old_gpu: dict[str, str]) -> None:
    done = firelane("generate", "--prompt", "import", "--max-tokens", "2", environ=old_gpu)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_doctor_shows_the_gpu(old_gpu: dict[str, str]) -> None:
    done = firelane("doctor", environ=old_gpu)
    assert done.returncode == 0, done.stderr
    assert "Fake H200, 128.0 GiB, compute capability 7.5, 127.0 GiB in use" in done.stdout
    assert "no: Fake H200 has compute capability 7.5" in done.stdout
