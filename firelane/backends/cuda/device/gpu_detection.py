"""Is there an NVIDIA GPU here that this backend can use? Asked of the driver alone, before anything heavy is
imported.

Calls libcuda (CUDA driver API: cuInit, cuDeviceGet*, cuDriverGetVersion) and, for memory in use, NVML.
No CUDA context is made. Of several devices that the driver shows the first one is described:
CUDA_VISIBLE_DEVICES picks it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from firelane.errors import MachineError, UsageError

LIBCUDA = "libcuda.so.1"
LIBNVML = "libnvidia-ml.so.1"
PCI_DEVICES = Path("/sys/bus/pci/devices")
DRIVER_FILE = Path("/proc/driver/nvidia/version")
NVIDIA_VENDOR = "0x10de"
OLDEST_CAPABILITY = (8, 0)
SHARED_BYTES = 2 << 30
GIB = 1 << 30
INSTALL = "pip install 'firelane[cuda]'"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_REFUSALS = {
    3: "the driver has not started",
    34: "only a stub of the driver is installed: install the driver itself",
    100: "it shows no device: look at nvidia-smi, CUDA_VISIBLE_DEVICES and the container's options",
    802: "the system is not ready yet: is nvidia-fabricmanager running?",
    803: "the kernel's part of the driver and its library have different versions: reboot, or reload it",
    804: "this GPU does not take that driver's compatibility mode",
    999: "unknown error: look at nvidia-smi and dmesg",
}


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """memory_bytes: all of it; used_bytes: what all processes hold now, None where NVML does not say."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    used_bytes: int | None

    def __str__(self) -> str:
        return f"{self.name}, {self.memory_bytes / GIB:.1f} GiB, compute capability {dotted(self.capability)}"

    @property
    def is_shared(self) -> bool:
        """Others hold more of its memory than a driver's own share."""
        return (self.used_bytes or 0) > SHARED_BYTES

    @property
    def held(self) -> str:
        return f"{(self.used_bytes or 0) / GIB:.1f} of {self.memory_bytes / GIB:.1f} GiB of {self.name}"


@dataclass(frozen=True, kw_only=True)
class Packages:
    """Versions of what the `cuda` extra brings, "" where it is missing. torch_cuda: the CUDA version that
    torch was built for, "" in a CPU build."""

    torch: str
    torch_cuda: str
    triton: str


@dataclass(frozen=True, kw_only=True)
class GpuDetection:
    """gpu: None where there is none that answers. driver: its version ("" unknown); driver_cuda: newest CUDA
    that it runs, such as (13, 0). there: a GPU of this vendor is in the machine, usable or not. problem: why
    the backend cannot run here, and what to do, or "": it can. count: of GPUs that this process sees."""

    gpu: Gpu | None
    driver: str
    driver_cuda: tuple[int, int]
    packages: Packages
    there: bool
    problem: str
    count: int = 0


class DriverError(Exception):
    """The driver cannot be asked, or refuses."""


def detect(*, libcuda: str = LIBCUDA, libnvml: str = LIBNVML) -> GpuDetection:
    """Detect the GPUs of this machine. Never raises; takes microseconds where there is no driver, else the
    driver's own start, which whoever uses the GPU in this process pays just once."""
    there = _is_there()
    try:
        driver = Driver(libcuda)
    except DriverError as error:
        return _absent(f"{error}", there)
    try:
        driver.start()
        gpu, count = driver.first(libnvml), driver.count()
    except DriverError as error:
        return _absent(f"{error}", there, driver.cuda_version())
    packages = installed()
    cuda = driver.cuda_version()
    return GpuDetection(
        gpu=gpu,
        driver=driver_version(libnvml),
        driver_cuda=cuda,
        packages=packages,
        there=True,
        problem=next(_problems(gpu, cuda, packages), ""),
        count=count,
    )


def require(found: GpuDetection) -> Gpu:
    """The GPU to use. Raises MachineError, or UsageError where only the extra is missing, with what to do."""
    if found.gpu is not None and not found.problem:
        return found.gpu
    missing = found.gpu is not None and not (found.packages.torch and found.packages.triton)
    raise (UsageError if missing else MachineError)(f"--backend cuda: {found.problem}")


def _absent(problem: str, there: bool, cuda: tuple[int, int] = (0, 0)) -> GpuDetection:
    if not there:
        problem = f"no NVIDIA GPU is in this machine, or none that this process may use ({problem})"
    else:
        problem = f"an NVIDIA GPU is in this machine, but {problem}"
    return GpuDetection(
        gpu=None,
        driver=driver_version(),
        driver_cuda=cuda,
        packages=Packages(torch="", torch_cuda="", triton=""),
        there=there,
        problem=problem,
    )


def _problems(gpu: Gpu, cuda: tuple[int, int], packages: Packages) -> Iterator[str]:
    """Problems that stand in the way, most basic first. A driver runs programs of every older CUDA version,
    and of newer ones of the same major version (minor version compatibility)."""
    if gpu.capability < OLDEST_CAPABILITY:
        yield (
            f"{gpu.name} has compute capability {dotted(gpu.capability)}, and at least "
            f"{dotted(OLDEST_CAPABILITY)} is needed (bf16 matrix instructions): use --backend cpu"
        )
    for name in ("torch", "triton"):
        if not getattr(packages, name):
            yield f"{gpu.name} is there, but {name} is not installed: {INSTALL}"
    if not packages.torch_cuda:
        yield (
            f"torch {packages.torch} is a build for the CPU: install one for CUDA "
            f"{cuda[0]} or older (pip install --force-reinstall torch; https://pytorch.org/get-started)"
        )
    wanted = _pair(packages.torch_cuda)
    if wanted[0] > cuda[0]:
        yield (
            f"the driver runs CUDA {dotted(cuda)} and torch {packages.torch} is built for {dotted(wanted)}: "
            f"install a newer driver, or a torch for CUDA {cuda[0]}"
        )


class Driver:
    """The few calls of libcuda that are needed."""

    def __init__(self, library: str = LIBCUDA) -> None:
        """Raises DriverError where the library is missing or no driver's."""
        try:
            self._cuda = ctypes.CDLL(library)
            self._cuda.cuInit.restype = ctypes.c_int
        except OSError as error:
            raise DriverError(f"its driver is not installed: {library} cannot be loaded") from error
        except AttributeError as error:
            raise DriverError(f"{library} is not the driver's library") from error

    def start(self) -> None:
        """Raises DriverError with the driver's reason."""
        status = self._cuda.cuInit(0)
        if status:
            raise DriverError(f"its driver refuses: {_REFUSALS.get(status, f'error {status}')}")

    def cuda_version(self) -> tuple[int, int]:
        number = ctypes.c_int()
        self._cuda.cuDriverGetVersion(ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def count(self) -> int:
        """Number of devices. Raises DriverError."""
        count = ctypes.c_int()
        self._check(self._cuda.cuDeviceGetCount(ctypes.byref(count)))
        return count.value

    def first(self, libnvml: str = LIBNVML) -> Gpu:
        """The first device. Raises DriverError where there is none."""
        device, memory = ctypes.c_int(), ctypes.c_size_t()
        if not self.count():
            raise DriverError(f"its driver refuses: {_REFUSALS[100]}")
        self._check(self._cuda.cuDeviceGet(ctypes.byref(device), 0))
        name, bus_id = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64)
        self._check(self._cuda.cuDeviceGetName(name, len(name), device))
        self._check(self._cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
        self._check(self._cuda.cuDeviceGetPCIBusId(bus_id, len(bus_id), device))
        return Gpu(
            name=name.value.decode(errors="replace"),
            capability=(
                self._attribute(_CAPABILITY_MAJOR, device),
                self._attribute(_CAPABILITY_MINOR, device),
            ),
            memory_bytes=memory.value,
            used_bytes=used_bytes(bus_id.value, libnvml),
        )

    def _attribute(self, attribute: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self._check(self._cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device))
        return value.value

    def _check(self, status: int) -> None:
        if status:
            raise DriverError(f"its driver refuses: {_REFUSALS.get(status, f'error {status}')}")


class _NvmlMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def used_bytes(bus_id: bytes, library: str = LIBNVML) -> int | None:
    """Memory that all processes hold on the device of this PCI bus id, or None where NVML does not say."""
    try:
        nvml = ctypes.CDLL(library)
        handle, memory = ctypes.c_void_p(), _NvmlMemory()
        if nvml.nvmlInit_v2():
            return None
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id, ctypes.byref(handle)):
            return None
        return None if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) else int(memory.used)
    except (OSError, AttributeError):
        return None


def driver_version(library: str = LIBNVML) -> str:
    """The version of the driver's part in the kernel, such as 580.159.04; else NVML's word; "" where neither
    says."""
    try:
        found = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", DRIVER_FILE.read_text())
        if found:
            return found[1]
    except OSError:
        pass
    try:
        nvml, text = ctypes.CDLL(library), ctypes.create_string_buffer(96)
        said = not nvml.nvmlInit_v2() and not nvml.nvmlSystemGetDriverVersion(text, len(text))
        return text.value.decode(errors="replace") if said else ""
    except (OSError, AttributeError):
        return ""


def installed() -> Packages:
    """Versions of torch and triton, without importing them."""
    return Packages(torch=_version("torch"), torch_cuda=_torch_cuda(), triton=_version("triton"))


def dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def _version(package: str) -> str:
    if PathFinder.find_spec(package) is None:
        return ""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and rarely needed

    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def _torch_cuda() -> str:
    """torch/version.py says it: `cuda: Optional[str] = '13.0'`."""
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return ""
    found = re.search(r"""^cuda\b[^=\n]*=\s*['"]([\d.]+)['"]""", text, re.MULTILINE)
    return found[1] if found else ""


def _pair(text: str) -> tuple[int, int]:
    numbers = [int(n) for n in re.findall(r"\d+", text)[:2]]
    return (*numbers, 0, 0)[0], (*numbers, 0, 0)[1]


def _is_there() -> bool:
    if DRIVER_FILE.exists():
        return True
    return any(_is_gpu(device) for device in PCI_DEVICES.glob("*"))


def _is_gpu(device: Path) -> bool:
    """A display controller (class 0x03) of the vendor."""
    try:
        vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text()
    except OSError:
        return False
    return vendor == NVIDIA_VENDOR and kind.startswith("0x03")
