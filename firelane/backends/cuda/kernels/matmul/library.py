"""The library's product (cuBLAS), for many rows where a row's bits may depend on what else is in the step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LibraryProduct:
    """out = x · weightsᵀ, all rows of x, whether a step has them or not. weights: [features, inputs]; x: the
    same dtype [rows, >= inputs]; out: float32 [rows, >= features]; all contiguous along the last axis."""

    x: Tensor
    weights: Tensor
    out: Tensor

    @property
    def name(self) -> str:
        return "library_product"

    def run(self) -> None:
        """Start it on the current stream."""
        features, inputs = self.weights.shape
        x, out = self.x[:, :inputs], self.out[:, :features]
        if x.is_cuda and x.dtype != torch.float32:
            torch.mm(x, self.weights.t(), out_dtype=torch.float32, out=out)
        else:
            torch.mm(x.float(), self.weights.float().t(), out=out)

    def compile(self) -> None:
        """The library brings its kernels along."""
