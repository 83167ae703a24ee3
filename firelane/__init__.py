"""Firelane: LLM inference and serving for scarce hardware.

`LLM` and `SamplingParams` are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from firelane.llm import LLM, SamplingParams


def __getattr__(name: str) -> Any:
    if name in ("LLM", "SamplingParams"):
        from firelane import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'firelane' has no attribute {name!r}")
