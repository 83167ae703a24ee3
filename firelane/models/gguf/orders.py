"""Orders of rows and inputs that llama.cpp's converter changes, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.errors import UnsupportedModelError
from firelane.models.gguf.metadata import Metadata

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Order:
    """Places of rows and inputs of a model's tensor in the file; see Tensor in weights/gguf/index.py."""

    view: Shape = ()
    order: Shape = ()
    kept: int = 0
    inputs: Shape = ()


AS_STORED = Order()


def as_stored(part: str, shape: Shape, layer: int, metadata: Metadata) -> Order:  # noqa: ARG001
    """The order of a tensor that is stored as the model reads it."""
    return AS_STORED


def pairs(part: str, shape: Shape, layer: int, metadata: Metadata) -> Order:
    """The order of q and k: rows of a head, stored as pairs of neighbours, as two halves again."""
    if part not in ("attn_q", "attn_k"):
        return AS_STORED
    of_queries = metadata.of_layers("attention.head_count")
    counts = metadata.of_layers("attention.head_count_kv", of_queries[0]) if part == "attn_k" else of_queries
    heads, rows = counts[layer], shape[0]
    if heads < 1 or rows % (2 * heads):
        raise UnsupportedModelError(f"{part} of {rows} rows cannot be that of {heads} heads")
    return Order(view=(heads, rows // heads // 2, 2), order=(0, 2, 1))


ROWS_OF_HEAD = {
    "attn_qkv": 0,
    "ssm_conv1d": 0,
    "attn_gate": 0,
    "ssm_alpha": 1,
    "ssm_beta": 1,
    "ssm_a": 1,
    "ssm_dt": 1,
}
"""Rows of a value head; 0: as many as the head is wide."""
BEHIND_KEYS = ("attn_qkv", "ssm_conv1d")
"""Tensors that have rows of queries and keys first."""
OUTPUT = "ssm_out"


def tiled(part: str, shape: Shape, layer: int, metadata: Metadata) -> Order:  # noqa: ARG001
    """The order of rows of value heads, those of one key head together: stored are the first of each key
    head, then the second of each, and so on."""
    if part not in ROWS_OF_HEAD and part != OUTPUT:
        return AS_STORED
    keys, heads = metadata.size("ssm.group_count"), metadata.size("ssm.time_step_rank")
    each, width = heads // keys, metadata.size("ssm.inner_size") // heads
    kept = 2 * keys * metadata.size("ssm.state_size") if part in BEHIND_KEYS else 0
    size = (ROWS_OF_HEAD.get(part) or width) if part != OUTPUT else width
    found = shape[-1] if part == OUTPUT else shape[0]
    if each < 1 or found != kept + keys * each * size:
        raise UnsupportedModelError(f"{part} of {found} rows cannot be that of {heads} heads of {keys} keys")
    if each == 1:
        return AS_STORED
    if part == OUTPUT:
        return Order(inputs=(each, keys, size))
    return Order(view=(each, keys, size), order=(1, 0, 2), kept=kept)
