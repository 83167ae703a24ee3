"""The CPU backend: C++ generated for the Program, compiled for this machine, one native call per step."""

from firelane.backends.cpu.loader import describe, load

__all__ = ["describe", "load"]
