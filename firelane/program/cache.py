"""The KV cache of a Program: its layers, and the groups whose pages come from one pool.

A page holds block_size tokens of all layers of one group, contiguous, layer after layer. All groups have the
same bytes per token, so that any page can serve any group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from firelane.contract.span import Span
from firelane.program.ops import HeadShape
from firelane.program.values import DType

KV = "kv"
MAX_PADDING = 1 / 8  # share of all pages' bytes


@dataclass(frozen=True, kw_only=True)
class CacheLayer:
    """Keys and values of one attention layer, in `dtype` or in the code of their shape: of each token
    kv_heads of both, or keys that hold their values (latent attention)."""

    layer: int
    shape: HeadShape
    dtype: DType
    span: Span

    @property
    def bytes_per_token(self) -> int:
        return self.shape.cached_bytes(self.dtype)


@dataclass(frozen=True, kw_only=True)
class CacheGroup:
    """Layers of one span that share pages, and so a block table of each sequence."""

    kind: str = KV
    span: Span
    layers: tuple[CacheLayer, ...]
    bytes_per_token: int
    """Bytes of a token, in all groups alike; what the layers leave of it is padding."""

    @property
    def offsets(self) -> dict[int, int]:
        """By layer number: bytes per token of the layers before it; times block_size, its place in a page."""
        starts = accumulate((layer.bytes_per_token for layer in self.layers), initial=0)
        return {layer.layer: start for layer, start in zip(self.layers, starts, strict=False)}


Grouping = tuple[tuple[Span, tuple[int, ...]], ...]
"""Cache groups in their order: of each its span, and the numbers of its layers."""


def grouping_of(groups: Sequence[CacheGroup]) -> Grouping:
    return tuple((group.span, tuple(layer.layer for layer in group.layers)) for group in groups)


def regroup_layers(layers: Sequence[CacheLayer], grouping: Grouping) -> tuple[CacheGroup, ...]:
    """The groups of a model of which `layers` are a part: each has those of its layers that are there, if
    any."""
    runs = [[layer for layer in layers if layer.layer in numbers] for _, numbers in grouping]
    size = max(map(_bytes, runs), default=0)
    return tuple(
        CacheGroup(span=span, layers=tuple(run), bytes_per_token=size)
        for (span, _), run in zip(grouping, runs, strict=True)
    )


def group_layers(layers: Sequence[CacheLayer]) -> tuple[CacheGroup, ...]:
    """The cache groups of `layers`, ordered by the first layer of each span.

    The span with the fewest bytes is one group. Each other span is cut into as few groups of that size as
    hold it, with near equal numbers of whole layers, padded. Where that pads by more than MAX_PADDING, the
    span with the fewest bytes is cut in two, then in three and so on, until it does not; failing that, the
    cut that pads least is taken.
    """
    by_span: dict[Span, list[CacheLayer]] = {}
    for layer in layers:
        by_span.setdefault(layer.span, []).append(layer)
    if not by_span:
        return ()
    runs, size = _best_cut(list(by_span.values()))
    return tuple(CacheGroup(span=run[0].span, layers=tuple(run), bytes_per_token=size) for run in runs)


def _best_cut(classes: Sequence[Sequence[CacheLayer]]) -> tuple[list[Sequence[CacheLayer]], int]:
    """Runs of layers that make a group each, and the bytes per token of a group."""
    smallest = min(classes, key=_bytes)
    widest_layer = max(layer.bytes_per_token for layers in classes for layer in layers)
    best: tuple[list[Sequence[CacheLayer]], int] = ([], 0)
    least = 1.0
    for parts in range(1, len(smallest) + 1):
        size = max(widest_layer, *(_bytes(run) for run in _split(smallest, parts)))
        runs = [run for layers in classes for run in _cut(layers, size)]
        padding = 1 - sum(map(_bytes, classes)) / (size * len(runs))
        if padding < least:
            best, least = (runs, size), padding
        if padding <= MAX_PADDING:
            break
    return best


def _cut(layers: Sequence[CacheLayer], size: int) -> list[Sequence[CacheLayer]]:
    """The fewest near equal runs of at most `size` bytes per token each."""
    parts = -(-_bytes(layers) // size)
    while max(_bytes(run) for run in _split(layers, parts)) > size:
        parts += 1
    return _split(layers, parts)


def _split(layers: Sequence[CacheLayer], parts: int) -> list[Sequence[CacheLayer]]:
    """Runs whose numbers of layers differ by one at most."""
    bounds = [len(layers) * part // parts for part in range(parts + 1)]
    return [layers[start:end] for start, end in pairwise(bounds)]


def _bytes(layers: Sequence[CacheLayer]) -> int:
    return sum(layer.bytes_per_token for layer in layers)
