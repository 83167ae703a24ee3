"""The detection describes a machine's GPU: this machine's as it is, and drivers made up in C++."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from firelane import backends
from firelane.backends import cuda
from firelane.backends.cuda.device import gpu_detection
from firelane.backends.cuda.device.gpu_detection import GpuDetection, Packages
from firelane.engine_config import ExecutorConfig
from firelane.errors import FirelaneError, MachineError, OutOfMemoryError, UsageError

SOURCE = Path(__file__).parent / "fake_libcuda.cpp"
DEFAULTS = {"INIT": 0, "DRIVER_CUDA": 13010, "COUNT": 1, "MAJOR": 9, "NVML": 0}
COMPLETE = Packages(torch="2.11.0", torch_cuda="13.0", triton="3.6.0")
Look = Callable[..., GpuDetection]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    made: dict[str, str] = {}

    def build(**macros: int) -> str:
        flags = [f"-D{name}={value}" for name, value in (DEFAULTS | macros).items()]
        if str(flags) not in made:
            path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
            subprocess.run(["g++", "-shared", "-fPIC", *flags, "-o", str(path), str(SOURCE)], check=True)
            made[str(flags)] = str(path)
        return made[str(flags)]

    return build


@pytest.fixture
def look(library: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Look:
    """Look at a machine with this driver and these packages."""
    monkeypatch.setattr(gpu_detection, "DRIVER_FILE", tmp_path / "none")

    def ask(packages: Packages = COMPLETE, **macros: int) -> GpuDetection:
        monkeypatch.setattr(gpu_detection, "installed", lambda: packages)
        path = library(**macros)
        return gpu_detection.detect(libcuda=path, libnvml=path)

    return ask


def packages(**changes: str) -> Packages:
    return Packages(**{"torch": "2.11.0", "torch_cuda": "13.0", "triton": "3.6.0"} | changes)


def test_a_gpu_that_can_be_used(look: Look) -> None:
    found = look()
    assert found.problem == ""
    assert found.there
    assert found.driver == "580.1"
    assert found.driver_cuda == (13, 1)
    gpu = gpu_detection.require(found)
    assert str(gpu) == "Fake H200, 128.0 GiB, compute capability 9.5"
    assert gpu.used_bytes == 127 << 30
    assert gpu.is_shared
    assert gpu.held == "127.0 of 128.0 GiB of Fake H200"


def test_memory_in_use_may_be_unknown(look: Look) -> None:
    gpu = gpu_detection.require(look(NVML=9))
    assert gpu.used_bytes is None
    assert not gpu.is_shared


@pytest.mark.parametrize(
    ("given", "macros", "message"),
    [
        (packages(torch=""), {}, "torch is not installed: pip install 'firelane.cuda.'"),
        (packages(triton=""), {}, "triton is not installed: pip install 'firelane.cuda.'"),
    ],
    ids=["torch", "triton"],
)
def test_an_extra_that_is_missing(look: Look, given: Packages, macros: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gpu_detection.require(look(given, **macros))


@pytest.mark.parametrize(
    ("given", "macros", "message"),
    [
        (COMPLETE, {"MAJOR": 7}, "compute capability 7.5, and at least 8.0 is needed"),
        (packages(torch_cuda=""), {}, "torch 2.11.0 is a build for the CPU: install one for CUDA 13"),
        (
            COMPLETE,
            {"DRIVER_CUDA": 12080},
            r"runs CUDA 12\.8 and torch 2\.11\.0 is built for 13\.0: .* newer driver",
        ),
        (COMPLETE, {"INIT": 100}, "shows no device: look at nvidia-smi"),
        (COMPLETE, {"INIT": 803}, "different versions: reboot"),
        (COMPLETE, {"INIT": 4711}, "refuses: error 4711"),
        (COMPLETE, {"COUNT": 0}, "shows no device"),
    ],
    ids=["capability", "cpu build", "old driver", "no device", "mismatch", "unknown", "count 0"],
)
def test_a_gpu_that_cannot_be_used(look: Look, given: Packages, macros: dict[str, int], message: str) -> None:
    found = look(given, **macros)
    with pytest.raises(MachineError, match=message) as raised:
        gpu_detection.require(found)
    assert "\n" not in str(raised.value)


def test_a_newer_torch_of_the_same_cuda_major_runs_on_an_older_driver(look: Look) -> None:
    assert look(packages(torch_cuda="13.2"), DRIVER_CUDA=13000).problem == ""
    assert look(packages(torch_cuda="12.8"), DRIVER_CUDA=13000).problem == ""


def test_a_driver_that_is_missing_or_something_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_detection, "PCI_DEVICES", tmp_path)
    monkeypatch.setattr(gpu_detection, "DRIVER_FILE", tmp_path / "version")
    found = gpu_detection.detect(libcuda="libno-such-driver.so")
    assert not found.there
    assert "no NVIDIA GPU is in this machine" in found.problem
    assert "is not the driver's library" in gpu_detection.detect(libcuda="libc.so.6").problem
    card = tmp_path / "0000:9a:00.0"
    card.mkdir()
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    found = gpu_detection.detect(libcuda="libno-such-driver.so")
    assert found.there
    assert "but its driver is not installed" in found.problem
    (card / "class").write_text("0x020000\n")  # a network card of the same maker
    assert not gpu_detection.detect(libcuda="libno-such-driver.so").there


def test_the_kernel_tells_the_drivers_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_detection, "DRIVER_FILE", tmp_path / "version")
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@a)\n"
    (tmp_path / "version").write_text(line)
    assert gpu_detection.driver_version("libno-such.so") == "580.159.04"
    (tmp_path / "version").unlink()
    assert gpu_detection.driver_version("libno-such.so") == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [("cuda: Optional[str] = '13.0'", "13.0"), ('cuda = "12.8"', "12.8"), ("cuda: Optional[str] = None", "")],
)
def test_torch_tells_its_cuda_without_being_imported(
    line: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '9'\n{line}\nhip = None\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert gpu_detection.installed().torch_cuda == expected
    assert gpu_detection.installed().triton == ""


def test_more_ranks_than_gpus_are_refused(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    found = look(COUNT=2)
    monkeypatch.setattr(gpu_detection, "detect", lambda: found)
    config = ExecutorConfig(cache_dir=Path("/nowhere"), tensor_parallel_size=4)
    with pytest.raises(
        UsageError, match="--tensor-parallel-size 4: this process sees 2 GPUs, and each of 4 ranks"
    ):
        cuda.load(None, Path("/nowhere"), config, lambda *_: None)  # type: ignore[arg-type]


def test_auto_takes_what_can_be_used(
    look: Look, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    usable, old = look(), look(MAJOR=7)
    monkeypatch.setattr(gpu_detection, "detect", lambda: usable)
    assert backends.choose() == "cuda"
    assert caplog.messages.pop() == "backend cuda: Fake H200, driver 580.1"
    monkeypatch.setattr(gpu_detection, "detect", lambda: old)
    assert backends.choose() == "cpu"
    assert "backend cpu: Fake H200 has compute capability 7.5" in caplog.messages.pop()


def test_auto_says_nothing_where_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_detection, "PCI_DEVICES", tmp_path)
    monkeypatch.setattr(gpu_detection, "DRIVER_FILE", tmp_path / "version")
    absent = gpu_detection.detect(libcuda="libno-such-driver.so")
    monkeypatch.setattr(gpu_detection, "detect", lambda: absent)
    assert backends.choose() == "cpu"
    assert caplog.messages == []


def refusing(error: FirelaneError) -> type:
    class Loader:
        @staticmethod
        def load(*_: object) -> None:
            raise error

    return Loader


def test_memory_of_others_is_named(look: Look, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crowded, alone = look(), look(NVML=9)
    monkeypatch.setattr(cuda, "import_module", lambda _: refusing(OutOfMemoryError("no room")))
    request = ExecutorConfig(cache_dir=tmp_path)
    monkeypatch.setattr(gpu_detection, "detect", lambda: crowded)
    with pytest.raises(
        OutOfMemoryError, match=r"no room .before this start, other processes held 127.0 of 128.0"
    ):
        backends.create_executor("cuda", None, tmp_path, request, print)  # type: ignore[arg-type]
    monkeypatch.setattr(gpu_detection, "detect", lambda: alone)
    with pytest.raises(OutOfMemoryError, match=r"^no room$"):
        backends.create_executor("cuda", None, tmp_path, request, print)  # type: ignore[arg-type]


def test_looking_imports_neither_torch_nor_triton() -> None:
    script = (
        "import sys; from firelane.backends import choose; choose(); "
        "import firelane.backends.cuda.device.faults; "
        "print({'torch', 'triton'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert done.stdout == "set()\n", done.stderr
