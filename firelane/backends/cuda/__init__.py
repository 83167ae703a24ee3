"""The CUDA backend: Triton kernels and library products, captured in one graph for each bucket of rows."""

from firelane.backends.cuda.loader import load

__all__ = ["load"]
