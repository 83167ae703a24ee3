"""Lists the work that compile_all() leaves to a kernel's first launch, with a driver that only notes.

    python -m tests.backends.cuda.compiled_ahead     a JSON object: made -> the threads that made it

launchers, modules: of two launches of one kernel, then of another kernel. kernels: as compile_all() counts.
"""

from __future__ import annotations

import json
import os
import threading
from types import SimpleNamespace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # before triton is imported: an interpreting process cannot compile

import triton
import triton.language as tl

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.lowering.compilation import compile_all
from tests.backends.cuda.compile_driver import OnlyATarget, untouched


@triton.jit
def store_kernel(x, value):
    tl.store(x, value)


@triton.jit
def copy_kernel(x, out):
    tl.store(out, tl.load(x))


class NotingDriver(OnlyATarget):
    """Notes in which thread Triton makes a launcher, and loads a module."""

    def __init__(self) -> None:
        self.launchers: list[str] = []
        self.modules: list[str] = []
        self.utils = SimpleNamespace(
            get_device_properties=lambda _: {"max_shared_mem": 1 << 20}, load_binary=self._load
        )

    def launcher_cls(self, *_: Any) -> Any:
        self.launchers.append(threading.current_thread().name)
        return lambda *_: None

    def _load(self, *_: Any) -> tuple[int, int, int, int, int]:
        self.modules.append(threading.current_thread().name)
        return 1, 1, 16, 0, 1024


def main() -> None:
    driver = NotingDriver()
    triton.runtime.driver.set_active(driver)
    x = untouched(16)
    launches = [
        Launch(kernel=store_kernel, grid=(1,), arguments={"x": x, "value": 3.0}),
        Launch(kernel=store_kernel, grid=(1,), arguments={"x": x, "value": 4.0}),
        Launch(kernel=copy_kernel, grid=(1,), arguments={"x": x, "out": x}),
    ]
    kernels = compile_all(launches, threads=1)
    print(json.dumps({"kernels": kernels, "launchers": driver.launchers, "modules": driver.modules}))


if __name__ == "__main__":
    main()
