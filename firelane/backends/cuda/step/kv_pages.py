"""KvPages: the paged KV cache. One pool of pages serves all cache groups; a page holds block_size tokens of
all layers of one group (program/cache.py), keys and then values of each layer in turn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.contract import StepLimits
from firelane.program.cache import CacheLayer
from firelane.program.program import Program
from firelane.program.values import DType

FORMAT = 1
"""The version of the layout of keys and values inside of a page."""
DTYPES = {DType.BF16: torch.bfloat16, DType.F32: torch.float32, DType.I32: torch.int32}


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """Keys and values of one attention layer: views [num_blocks, kv_heads, block_size, width] of the pool, in
    its dtype; values may be a part of their keys. group: whose block tables name the layer's pages."""

    keys: Tensor
    values: Tensor
    group: int

    @property
    def page_stride(self) -> int:
        """Elements from a page to the next."""
        return self.keys.stride(0)

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]


@dataclass(frozen=True, kw_only=True)
class KvPages:
    """pool: [num_blocks, elements of a page]; layers: by number."""

    pool: Tensor
    layers: Mapping[int, LayerCache]

    @classmethod
    def allocate(cls, program: Program, limits: StepLimits, device: Device) -> KvPages:
        (dtype,) = {DTYPES[layer.dtype] for layer in program.cache_layers}
        page_bytes = program.kv_bytes_per_token * limits.block_size
        pool = device.empty(limits.num_blocks, page_bytes // dtype.itemsize, dtype=dtype)
        layers = {
            layer.layer: layer_cache(pool, layer, group.offsets[layer.layer], limits.block_size, number)
            for number, group in enumerate(program.cache_groups)
            for layer in group.layers
        }
        return cls(pool=pool, layers=layers)


def layer_cache(pool: Tensor, layer: CacheLayer, offset: int, block_size: int, group: int) -> LayerCache:
    """offset: bytes per token of the layers before it in a page."""
    shape = layer.shape
    first = offset * block_size // pool.dtype.itemsize
    keys = _rows(pool, first, shape.kv_heads, block_size, shape.head_dim)
    if shape.shared:
        return LayerCache(keys=keys, values=keys[..., : shape.v_dim], group=group)
    first += block_size * shape.k_width
    values = _rows(pool, first, shape.kv_heads, block_size, shape.v_dim)
    return LayerCache(keys=keys, values=values, group=group)


def _rows(pool: Tensor, first: int, heads: int, block_size: int, width: int) -> Tensor:
    """[num_blocks, heads, block_size, width], from the element `first` of each page on."""
    strides = (pool.stride(0), block_size * width, width, 1)
    return pool.as_strided((len(pool), heads, block_size, width), strides, first)


def layout_id(program: Program, limits: StepLimits) -> str:
    """Changes with all that the place of a key or value in a page depends on. Which model's they are it does
    not say."""
    groups = [
        (group.kind, str(group.span), [(c.layer, str(c.shape), c.dtype.name) for c in group.layers])
        for group in program.cache_groups
    ]
    described = ("cuda", FORMAT, limits.block_size, program.kv_bytes_per_token, groups)
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]
