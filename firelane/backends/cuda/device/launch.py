"""Launch: one kernel with everything bound that it runs with. A step is a list of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Grid = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """kernel: a triton.jit function. arguments: by name, tensors, numbers and constexprs. warps, stages: of a
    program; see Triton's num_warps and num_stages."""

    kernel: Any
    grid: Grid
    arguments: Mapping[str, Any]
    warps: int = 4
    stages: int = 2
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    def run(self) -> None:
        """Start it on the current stream. Products are never fused with sums behind our back: the result
        would depend on the version of the compiler."""
        self.kernel[self.grid](**self.arguments, **self._options())

    def compile(self) -> Any:
        """Compile for the device without running; safe from many threads. Returns the compiled kernel."""
        return self.kernel.warmup(grid=self.grid, **self.arguments, **self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "num_warps": self.warps,
            "num_stages": self.stages,
            "enable_fp_fusion": False,
            **self.options,
        }


class Work(Protocol):
    """One part of a step: a Launch, or a library's product."""

    @property
    def name(self) -> str: ...

    def run(self) -> None:
        """Start it on the current stream."""
        ...

    def compile(self) -> Any:
        """Make it ready without running it; safe from many threads."""
        ...


class Nothing:
    """Work that there is none of."""

    name = "nothing"

    def run(self) -> None:
        """Return at once."""

    def compile(self) -> None:
        """Return at once."""


NOTHING = Nothing()
