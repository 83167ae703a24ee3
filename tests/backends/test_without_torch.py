"""The base install has neither torch nor triton: all but the CUDA backend imports without them."""

from __future__ import annotations

import subprocess
import sys

IMPORT_ALL = """
import importlib, pkgutil, sys

sys.modules["torch"] = sys.modules["triton"] = None  # whoever imports them gets an ImportError
import firelane

for module in pkgutil.walk_packages(firelane.__path__, "firelane."):
    if not module.name.startswith("firelane.backends.cuda.") and not module.name.endswith("__main__"):
        importlib.import_module(module.name)

from firelane.backends import choose

assert choose() in ("cpu", "cuda")
"""


def test_all_but_the_cuda_backend_imports_without_torch() -> None:
    result = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
