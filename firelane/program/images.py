"""A Program that takes rows of images among those of tokens.

It reads features of each token row: its places (merge_rows.py), the row that stands in place of the
embedding, and one row for each of the first layers, which is added behind it ("DeepStack", Meng et al.,
2024).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from firelane.errors import UnsupportedModelError
from firelane.program.ops import Embed, MergeRows, Op, ReadFeatures, RopeAndCache, with_values
from firelane.program.ops.merge_rows import PLACE_WIDTH
from firelane.program.program import Program
from firelane.program.values import DType, Rows, Value


@dataclass(frozen=True, kw_only=True)
class ImageRows:
    """The rows that a language model takes of an image: those of `width` numbers, and `deep` more for layers.
    axes: of each frequency of the rotation, whether it turns by time, row or column (0, 1, 2)."""

    width: int
    deep: int
    axes: tuple[int, ...]

    @property
    def row_width(self) -> int:
        """Numbers of an image's row."""
        return self.width * (1 + self.deep)

    @property
    def features(self) -> int:
        """Numbers of a token row, its places first."""
        return PLACE_WIDTH + self.row_width


def with_images(program: Program, rows: ImageRows) -> Program:
    """The program that takes rows of images. Raises UnsupportedModelError where its layers are not known, or
    it reads features already."""
    if program.features_in or len(program.streams) <= rows.deep:
        raise UnsupportedModelError(f"{program.name}: its layers cannot take rows of images")
    (embed,) = (op for op in program.ops if isinstance(op, Embed))
    if embed.out.width != rows.width:
        raise UnsupportedModelError(
            f"{program.name}: rows of images have {rows.width} numbers, those of tokens {embed.out.width}"
        )
    places = Value("places", Rows.TOKEN, PLACE_WIDTH, DType.F32)
    reads: list[Op] = [ReadFeatures(first=0, out=places)]
    behind = {embed.out: Value("image_rows", Rows.TOKEN, rows.width, DType.F32)}
    for layer, stream in enumerate(program.streams[1 : 1 + rows.deep]):
        behind[stream] = Value(f"image_rows_{layer}", Rows.TOKEN, rows.width, DType.F32)
    for number, value in enumerate(behind.values()):
        reads.append(ReadFeatures(first=PLACE_WIDTH + number * rows.width, out=value))
    ops, merged = reads, dict[Value, Value]()
    for op in program.ops:
        op = with_values(op, merged) if merged else op
        ops.append(_placed(op, places, rows) if isinstance(op, RopeAndCache) else op)
        for value in op.outputs:
            if value in behind:
                merged[value] = replace(value, name=f"{value.name}.merged")
                adds = value != embed.out
                ops.append(
                    MergeRows(x=value, rows=behind[value], places=places, adds=adds, out=merged[value])
                )
    head = None if program.head is None else with_values(program.head, merged)
    streams = tuple(merged.get(stream, stream) for stream in program.streams)
    return replace(program, ops=tuple(ops), head=head, streams=streams)


def _placed(op: RopeAndCache, places: Value, rows: ImageRows) -> RopeAndCache:
    return op if op.rotary is None else replace(op, places=places, axes=rows.axes)
