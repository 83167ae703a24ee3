"""Programs compiled for ARM64, run under qemu's user-mode emulation behind the interface of a
compiled library: the harness of the CPU kernels drives them as it drives this machine's own."""

from __future__ import annotations

import ctypes as ct
import hashlib
import importlib.util
import mmap
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cpu.codegen.codegen import generate
from firelane.backends.cpu.codegen.compile import SOURCES
from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.executor import CpuExecutor
from firelane.native.machine import CpuIdentity, compile_flags
from firelane.native.toolchain import BASE_FLAGS, zig_flags
from firelane.weights.formats.formats import Format
from tests.backends.cpu_harness import Machine, RandomWeights

ZIG = (sys.executable, "-m", "ziglang", "c++")
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""
CROSS = shutil.which("aarch64-linux-gnu-g++") or ""
BASE = [flag for flag in BASE_FLAGS if flag not in ("-shared", "-fPIC", "-fvisibility=hidden")]
OBJDUMP = shutil.which("aarch64-linux-gnu-objdump") or ""
DRIVER = Path(__file__).with_name("driver.cpp").read_text()
START, STEP, FIRST = 0x100000000000, 4096, 8192
"""The shared memory begins at START in the emulated process (driver.cpp); the step's struct lies at offset
STEP in it, and the first array at offset FIRST."""
EMULATED_CPUS = {"neonbf16": "max", "neon": "cortex-a72"}
ARM = CpuIdentity(
    model="ARM", architecture="aarch64", features=frozenset({"asimd", "atomics", "bf16"}), usable_cores=2
)


def has_zig() -> bool:
    return importlib.util.find_spec("ziglang") is not None


def missing() -> str:
    """Return what keeps this machine from running ARM64 programs, or an empty string."""
    if not QEMU:
        return "no qemu-aarch64-static: apt-get install qemu-user-static"
    if not CROSS and not has_zig():
        return "no compiler for ARM64: apt-get install g++-aarch64-linux-gnu"
    return ""


def compiled(layout: Layout, cache: Path) -> Path:
    """The layout's program and its driver, for Linux. By g++ where there is one for ARM64: zig compiles its
    library of C++ first."""
    command = _zig("aarch64-linux-musl", layout.isa)
    if CROSS:
        command = [CROSS, *BASE, *compile_flags(layout.isa, ARM)]
    return _made([*command, "-static"], generate(layout) + DRIVER, cache)


def compiled_for_macos(layout: Layout, cache: Path) -> Path:
    """The object file of the layout's program."""
    return _made([*_zig("aarch64-macos", layout.isa), "-c"], generate(layout), cache)


def _zig(target: str, isa: str) -> list[str]:
    return [*ZIG, "-target", target, *zig_flags([*BASE, *compile_flags(isa, ARM)])]


def _made(command: Sequence[str], source: str, cache: Path) -> Path:
    headers = "".join(path.read_text() for path in sorted(SOURCES.rglob("*.h")))
    made = cache / "arm" / hashlib.sha256(repr((source, headers, command)).encode()).hexdigest()[:32]
    made.parent.mkdir(exist_ok=True)
    if not made.exists():
        made.with_suffix(".cpp").write_text(source)
        partial = made.with_suffix(".partial")
        files = [str(made.with_suffix(".cpp")), "-o", str(partial)]
        done = subprocess.run([*command, f"-I{SOURCES}", "-w", *files], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        partial.rename(made)
    return made


class Image:
    """A file with copies of arrays, where the emulated process sees them; `fixed` ones are copied once."""

    def __init__(self, fixed: Iterable[Any], changing: Iterable[Any]) -> None:
        self._fixed, self._changing = list(map(_view, fixed)), list(map(_view, changing))
        views = {v.ctypes.data: v for v in (*self._fixed, *self._changing) if v.nbytes}
        self._starts = sorted(views)
        sizes = [-(-views[start].nbytes // 4096) * 4096 + 4096 for start in self._starts]
        self._offsets = np.cumsum([FIRST, *sizes]).tolist()
        self.size = self._offsets[-1]
        self._file = tempfile.NamedTemporaryFile(prefix="firelane-arm-")  # noqa: SIM115 closed by close()
        self._file.truncate(self.size)
        self._bytes = np.frombuffer(mmap.mmap(self._file.fileno(), self.size), np.uint8)
        for view in self._fixed:
            self._copy_of(view)[...] = view

    @property
    def path(self) -> str:
        return self._file.name

    def address(self, here: int | None) -> int:
        """In the emulated process, of what lies `here`."""
        if not here:
            return 0
        at = bisect_right(self._starts, here) - 1
        return START + self._offsets[at] + here - self._starts[at]

    def write(self, offset: int, record: Any) -> None:
        """A struct or an array of pointers, with the addresses that they have there."""
        copy = type(record).from_buffer_copy(record)
        if isinstance(copy, ct.Array):
            copy[:] = [self.address(pointer) for pointer in copy]
        else:
            for name, kind in copy._fields_:
                if kind is ct.c_void_p:
                    setattr(copy, name, self.address(getattr(copy, name)))
        raw = bytes(copy)
        self._bytes[offset : offset + len(raw)] = np.frombuffer(raw, np.uint8)

    def rewrite(self, record: Any) -> None:
        """The same in the place that the record has."""
        self.write(self.address(ct.addressof(record)) - START, record)

    def give(self) -> None:
        for view in self._changing:
            self._copy_of(view)[...] = view

    def take(self) -> None:
        for view in self._changing:
            view[...] = self._copy_of(view)

    def close(self) -> None:
        self._file.close()

    def _copy_of(self, view: NDArray[np.uint8]) -> NDArray[np.uint8]:
        offset = self.address(view.ctypes.data) - START if view.nbytes else 0
        return self._bytes[offset : offset + view.nbytes]


def _view(memory: Any) -> NDArray[np.uint8]:
    """The bytes of an array, or of a ctypes object."""
    if isinstance(memory, np.ndarray):
        return memory.reshape(-1).view(np.uint8)
    return np.frombuffer(memory, np.uint8)


class EmulatedLibrary:
    """A compiled program in an emulated process, with the methods of native.ProgramLibrary. The process
    starts with the first step, when all arrays are known."""

    def __init__(self, program: Path, isa: str) -> None:
        self._command = [QEMU, "-cpu", EMULATED_CPUS[isa], str(program)]
        self.machine: Machine | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def scratch_bytes(self, max_tokens: int) -> int:
        command = [*self._command, str(max_tokens)]
        return int(subprocess.run(command, capture_output=True, check=True).stdout)

    def create(self, arguments: Any) -> int:
        self._arguments = arguments._obj
        return 1

    def submit(self, _: int, step: Any) -> None:
        if self._process is None:
            self._start()
        self._image.give()
        self._image.write(STEP, step._obj)
        self._ask(b"s")
        self._image.take()

    def wait(self, _: int) -> None:
        pass

    def destroy(self, _: int) -> None:
        if self._process is not None:
            self._process.communicate()
            self._image.close()

    def _start(self) -> None:
        assert self.machine is not None
        executor = self.machine.executor
        self._image = _image_of(self.machine)
        self._image.write(0, self._arguments)
        _, weights, position_tables = executor._tables
        for record in (weights, position_tables, *(coded for coded, _ in executor._coded)):
            self._image.rewrite(record)
        self._process = subprocess.Popen(
            [*self._command, self._image.path, str(self._image.size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._ask(b"c")

    def _ask(self, command: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command)
        self._process.stdin.flush()
        answer = self._process.stdout.read(1)
        assert answer == command, f"the emulated process ended with {self._process.wait()}"


def _image_of(machine: Machine) -> Image:
    executor, weights = machine.executor, machine.weights
    coded = [memory for pair in executor._coded for memory in pair]
    fixed = [
        *executor._tables,
        executor._parts,
        *coded,
        *executor._positions.arrays,
        *weights._packed.values(),
        executor._scratch,
    ]
    records = (executor.state, machine.inputs, *executor._outputs)
    arrays = [v for record in records for v in vars(record).values() if isinstance(v, np.ndarray)]
    return Image(fixed, [executor.pages, executor.states, executor.arena, executor.op_seconds, *arrays])


def emulated(layout: Layout, cache: Path, *, threads: int = 2, decode_once_from: int = 2) -> Machine:
    """Make the same machine as cpu_harness.machine, but on an emulated ARM64 CPU."""
    library: Any = EmulatedLibrary(compiled(layout, cache), layout.isa)
    weights = RandomWeights(layout.program, forms=layout.forms)
    executor = CpuExecutor(
        library=library,
        layout=layout,
        weights=weights,
        threads=threads,
        decode_once_from=dict.fromkeys(Format, decode_once_from),
    )
    library.machine = Machine(executor, weights)
    return library.machine


def inner_loops(program: Path, function: str) -> list[list[str]]:
    """The instructions of the innermost loops of functions whose names contain `function`."""
    command = [OBJDUMP, "-d", "-C", "--no-show-raw-insn", str(program)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bodies = [body for body in text.split("\n\n") if function in body.partition(">:")[0]]
    return [loop for body in bodies for loop in _innermost(body.splitlines()[1:])]


def _innermost(lines: Sequence[str]) -> list[list[str]]:
    addresses = [line.partition(":")[0].strip() for line in lines]
    begin, found = 0, list[list[str]]()
    for at, line in enumerate(lines):
        operation, _, operands = line.partition(":")[2].strip().partition("\t")
        target = operands.rpartition(" <")[0].rpartition(" ")[2]
        if operation.startswith(("b.", "cbnz")) and target in addresses[begin : at + 1]:
            start = addresses.index(target)
            found.append([entry.partition(":")[2].strip() for entry in lines[start : at + 1]])
            begin = at + 1
    return found


def with_forms(layout: Layout, form: Format | None) -> Layout:
    """The layout with all matrices in a coded form."""
    matrices = [w.name for w in layout.program.weights if len(w.shape) == 2]
    return replace(layout, forms=dict.fromkeys(matrices, form) if form else {})
