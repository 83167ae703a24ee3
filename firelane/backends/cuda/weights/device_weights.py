"""DeviceWeights: what the lowering needs of loaded weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from firelane.backends.cuda.weights.matrices import Matrix


@dataclass(frozen=True, kw_only=True)
class DeviceWeights:
    """All weights of a program by name: matrices, and float32 vectors [width]."""

    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, Tensor]

    def matrix(self, name: str) -> Matrix:
        return self.matrices[name]

    def vector(self, name: str) -> Tensor:
        return self.vectors[name]

    @property
    def nbytes(self) -> int:
        return sum(m.nbytes for m in self.matrices.values()) + sum(v.nbytes for v in self.vectors.values())
