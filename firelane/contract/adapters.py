"""Low-rank adapters (Hu et al., "LoRA", 2021) in the memory of an executor: each has a place, and a sequence
names the place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.engine_config import ExecutorConfig

NO_ADAPTER = 0
"""In SlotState.adapter: the sequence has none."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """The change that an adapter makes to the weight [n, k] of one module: scale * b · a is added.

    a: uint16 [rank, k], b: uint16 [n, rank], the bits of bf16 numbers."""

    a: NDArray[np.uint16]
    b: NDArray[np.uint16]
    scale: float

    def __post_init__(self) -> None:
        assert self.a.dtype == self.b.dtype == np.uint16, f"factors are bf16 bits, not {self.a.dtype}"
        assert self.a.ndim == self.b.ndim == 2, f"factors {self.a.shape} and {self.b.shape} are no matrices"
        assert len(self.a) == self.b.shape[1], f"factors {self.a.shape} and {self.b.shape} have two ranks"

    @property
    def rank(self) -> int:
        return len(self.a)


AdapterTensors = Mapping[str, LowRank]
"""An adapter: its factors by the module's name in the checkpoint, as in `model.layers.0.self_attn.q_proj`."""


@dataclass(frozen=True)
class AdapterLimits:
    """The number of adapters that are in memory at a time, at most, and their largest rank."""

    max_adapters: int
    max_rank: int

    def __post_init__(self) -> None:
        assert min(self.max_adapters, self.max_rank) > 0, f"no room for adapters: {self}"

    @classmethod
    def of(cls, config: ExecutorConfig) -> AdapterLimits | None:
        """The limits that are asked for; None where no adapters are served."""
        most = max(config.max_loras, len(config.loras))
        return cls(most, config.max_lora_rank) if most else None


class AdapterMemory(Protocol):
    """The memory of an executor's adapters: places 1 .. limits.max_adapters, all empty at first. A place may
    be written while no step in flight has a sequence that names it. Adapters stay over a standby."""

    @property
    def limits(self) -> AdapterLimits: ...

    @property
    def modules(self) -> Mapping[str, tuple[int, int]]:
        """The modules that can be adapted, and the shape [n, k] of the weight of each."""
        ...

    def put(self, place: int, tensors: AdapterTensors) -> None:
        """Have an adapter in this place, and nothing of what was there. Raises UsageError that names what
        does not fit, with the place as it was: a module that is none of `modules`, a rank above
        limits.max_rank, factors of another shape than the module's."""
        ...

    def clear(self, place: int) -> None:
        """Have nothing in this place; a sequence that names it gets what one without an adapter gets."""
        ...


def check_adapter(memory: AdapterMemory, place: int, tensors: AdapterTensors) -> None:
    """Raises the errors of AdapterMemory.put."""
    assert 0 < place <= memory.limits.max_adapters, f"{place} is no place of {memory.limits}"
    for name, factors in tensors.items():
        shape = memory.modules.get(name)
        if shape is None:
            raise UsageError(f"the adapter changes {name}, and this model has no such product to adapt")
        if factors.rank > memory.limits.max_rank:
            raise UsageError(
                f"the adapter has rank {factors.rank} in {name}, above the {memory.limits.max_rank} that "
                "there is room for: raise --max-lora-rank"
            )
        found = (len(factors.b), factors.a.shape[1])
        if found != shape:
            raise UsageError(f"the adapter is for {name} of shape {found}, and the model's has {shape}")
