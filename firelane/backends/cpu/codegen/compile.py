"""The shared library of a program: its generated source, compiled for this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from firelane import env
from firelane.backends.cpu.codegen.codegen import PARTS, generate
from firelane.backends.cpu.codegen.forms import is_tiny
from firelane.backends.cpu.codegen.layout import Layout
from firelane.native import machine, toolchain
from firelane.native.target import Target, find_target, target_of
from firelane.native.toolchain import Toolchain

QUICK_FLAGS = ("-O1",)
"""Flags for a tiny model: half the compiler's time, and the same bits."""
SOURCES = Path(__file__).parent.parent / "csrc"


@dataclass(frozen=True, kw_only=True)
class KernelCompiler:
    """A compiler of layouts into shared libraries for this machine."""

    toolchain: Toolchain
    cpu: machine.CpuIdentity
    cache_dir: Path

    @classmethod
    def find(cls, settings: env.Environment, cache_dir: Path) -> KernelCompiler:
        """Raises CompilerError without a compiler, UsageError."""
        return cls(
            toolchain=toolchain.find_compiler(settings), cpu=machine.cpu_identity(), cache_dir=cache_dir
        )

    def target(self, settings: env.Environment) -> Target:
        """The best target here. Raises UsageError, CompilerError."""
        return find_target(settings, self.cpu, self.toolchain)

    def build(self, layout: Layout) -> Path:
        """Compile `layout`'s program, or find it compiled; returns the shared library. Raises CompilerError,
        CacheError."""
        flags = target_of(layout.isa, self.cpu, self.toolchain, self.cache_dir).flags
        tiny = is_tiny(layout.program)
        # Each part reads all headers: a sixth more of the compiler's time, which tiny models do not win back.
        in_parts = self.cpu.usable_cores >= PARTS and not tiny
        return self.toolchain.build(
            generate(layout),
            include_dirs=[SOURCES],
            flags=(*flags, *(QUICK_FLAGS if tiny else ())),
            cache_dir=self.cache_dir,
            cpu_key=self.cpu.key,
            name=f"the kernels of {layout.program.name}",
            parts=PARTS if in_parts else 1,
        )
