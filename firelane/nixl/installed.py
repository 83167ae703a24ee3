"""The packages that NIXL comes in, by the version of CUDA whose memory they could read, too."""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = ("nixl_cu12", "nixl_cu13")


def is_installed() -> bool:
    return any(find_spec(name) is not None for name in PACKAGES)
