"""Places of all that a compiled program touches: row strides, offsets, numbers of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from firelane.backends.cpu.codegen.adapter_layout import AdapterLayout
from firelane.contract import AdapterLimits, StepLimits
from firelane.errors import UnsupportedModelError
from firelane.program.cache_codes import SCALE_BYTES, SCALES, CacheCode
from firelane.program.integer_products import row_group
from firelane.program.liveness import ArenaPlacement, place
from firelane.program.ops import (
    AllReduce,
    Attention,
    AwaitCache,
    DeltaRule,
    ExpertGatedLinear,
    ExpertLinear,
    GatedLinear,
    Gather,
    GatherColumns,
    GatherRows,
    HeadShape,
    IndexTopK,
    Linear,
    Op,
    Receive,
    RMSNorm,
    Rotary,
    Send,
    StateSpace,
    Temperature,
)
from firelane.program.program import Program
from firelane.program.state import state_offsets
from firelane.program.values import DType, Rows, Value, Weight
from firelane.weights.formats.codebooks import Codebook
from firelane.weights.formats.formats import Format

LANES = 16
PANEL = 32
CACHE_LINE_BYTES = 64
ALIAS_BYTES = 256
INTEGER_UNIT_BYTES = 12
Meeting = AllReduce | AwaitCache | Gather | GatherColumns | GatherRows
"""Ops for which the ranks of a stage wait for each other."""
BF16_DOT_ISAS = ("avx512bf16", "neonbf16")
INT8_ISAS = ("avx512bf16", "avx512", "avx2")
"""Targets on which products of int8 activations were measured, and were faster with every form of codes
(benchmarks/results/formats.md)."""


@dataclass(frozen=True, kw_only=True)
class CachePlace:
    """The place of a layer in the cache: its group, where its keys and values begin in each page, and the
    code that they are in. Keys that hold their values are laid out as values are; with a code, values
    follow the keys of a head and the scales of both."""

    group: int
    keys: int
    values: int
    code: CacheCode | None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The memory layout of `program` for `limits` on `isa`; `forms` names the matrices (by weight name)
    that lie in a coded form; `integers`: whether products with those of integer codes are of integers;
    adapter_limits: of the adapters that the program has room for, None for one without."""

    program: Program
    limits: StepLimits
    isa: str
    forms: Mapping[str, Format] = field(default_factory=dict[str, Format])
    integers: bool = False
    adapter_limits: AdapterLimits | None = None

    def __post_init__(self) -> None:
        """Raises UnsupportedModelError for shapes that the kernels do not take."""
        limits, states = self.limits, self.program.state_bytes
        assert limits.state_bytes == states, f"states of {limits.state_bytes} bytes, the program's {states}"
        for op in self.program.ops:
            if isinstance(op, Attention):
                check_heads(op.shape)
            for what, size in _sizes_in_lanes(op):
                if size % LANES:
                    raise UnsupportedModelError(f"{what} {size}: the CPU kernels need a multiple of {LANES}")
            for product in op.products:
                if product.weight.k % 2:
                    raise UnsupportedModelError(
                        f"{product.weight.name}: the CPU kernels need an even number of inputs"
                    )

    def element_bytes(self, dtype: DType) -> int:
        """BF16 activations are kept as floats where there is no bf16 dot instruction."""
        return 2 if dtype is DType.BF16 and self.isa in BF16_DOT_ISAS else 4

    def row_bytes(self, value: Value) -> int:
        """Bytes from one row to the next; those of a part of what is gathered lie where they are gathered, or
        are as wide as those of any rank."""
        return self.padded_bytes(self._gathered.get(value, value.width), value.dtype)

    def padded_bytes(self, width: int, dtype: DType) -> int:
        """Bytes from one row to the next of rows so wide. They are padded to whole panels, and never a
        multiple of 256 bytes apart: the rows of a tile would fall into the same few sets of the first-level
        cache."""
        wide = -(-width // PANEL) * PANEL * self.element_bytes(dtype)
        return _apart(wide)

    def stride(self, value: Value) -> int:
        """Elements from one row to the next."""
        return self.row_bytes(value) // self.element_bytes(value.dtype)

    def padded_stride(self, width: int, dtype: DType) -> int:
        return self.padded_bytes(width, dtype) // self.element_bytes(dtype)

    @cached_property
    def meetings(self) -> dict[Meeting, int]:
        """The ops for which the ranks of a stage meet, by number, behind the beginning of the step; the parts
        of sums, and rows that are gathered, take two places in turns."""
        ops = [op for op in self.program.ops if isinstance(op, Meeting)]
        return {op: number for number, op in enumerate(ops, 1)}

    @property
    def shares_cache(self) -> bool:
        """Whether the ranks of a stage have one KV cache."""
        return any(isinstance(op, AwaitCache) for op in self.program.ops)

    @cached_property
    def sent(self) -> dict[Value, int]:
        """Values of each token that the next stage gets, and the bytes a row of those before it."""
        return self._before([op.x for op in self.program.ops if isinstance(op, Send)])

    @cached_property
    def received(self) -> dict[Value, int]:
        """Values that the stage before has sent: see there."""
        return self._before([op.out for op in self.program.ops if isinstance(op, Receive)])

    def _before(self, values: list[Value]) -> dict[Value, int]:
        assert all(value.rows is Rows.TOKEN for value in values), "stages hand on rows of tokens"
        return dict(zip(values, accumulate(map(self.row_bytes, values), initial=0), strict=False))

    @cached_property
    def _gathered(self) -> dict[Value, int]:
        """Values that are a part of a wider one, or it, and its width, or that of the widest part."""
        gathers = [op for op in self.program.ops if isinstance(op, Gather)]
        found = {v: sum(op.widths) for op in gathers for v in (op.x, op.out) if v is not None}
        columns = [op for op in self.program.ops if isinstance(op, GatherColumns)]
        return found | {op.x: op.slots * max(op.widths) for op in columns}

    @cached_property
    def placement(self) -> ArenaPlacement:
        """Byte offsets of all activations in one arena."""
        return place(
            self.program,
            row_bytes=self.row_bytes,
            max_rows=self.max_rows,
        )

    @property
    def max_rows(self) -> dict[Rows, int]:
        """The most rows of a value of each kind."""
        tokens, outputs = self.limits.max_num_batched_tokens, self.limits.max_output_rows
        return {Rows.TOKEN: tokens, Rows.OUTPUT: outputs, Rows.OWN: -(-tokens // self.program.row_ranks)}

    @cached_property
    def value_index(self) -> dict[Value, int]:
        """Values by number: compiled code asks for offsets by it, and so does not depend on the limits."""
        return {v: i for i, v in enumerate(v for op in self.program.ops for v in op.outputs)}

    @property
    def integer_rows_index(self) -> int:
        """The number of the inputs that are rounded to integers, behind all values."""
        return len(self.value_index)

    @property
    def features_in_index(self) -> int:
        """The number of the features that a step reads: they lie outside of the arena."""
        return self.integer_rows_index + 1

    @property
    def features_out_index(self) -> int:
        """The same of those that it tells."""
        return self.integer_rows_index + 2

    @property
    def adapters_index(self) -> int:
        """The number of the places of adapters by slot; behind it come what places have of each part, their
        factors, and the tiles of weights."""
        return self.integer_rows_index + 3

    @cached_property
    def adapters(self) -> AdapterLayout:
        """The places of adapters, which lie outside of the arena."""
        return AdapterLayout.of(self.program)

    @property
    def integer_rows_bytes(self) -> int:
        """The most that the inputs of an op take as integers."""
        most = 0
        for op in self.program.ops:
            if self.row_unit(op) is not None:
                slots = sum(p.x.width // p.weight.k for p in op.products)
                most = max(most, self.max_rows[op.products[0].x.rows] * slots * self.integer_row_bytes(op))
        return most

    def integer_row_bytes(self, op: Op) -> int:
        """Bytes from one row of rounded inputs of a matrix to the next: units of codes with three numbers."""
        unit = self.row_unit(op)
        assert unit is not None
        return _apart(op.products[0].weight.k // unit * (unit + INTEGER_UNIT_BYTES))

    def row_unit(self, op: Op) -> int | None:
        """Inputs of a unit of an op that multiplies integers, which have one scale in the row and one in the
        matrix; None of other ops."""
        if not self.integers or not isinstance(op, Linear | GatedLinear | ExpertGatedLinear | ExpertLinear):
            return None
        grouping = self.coded[op.weight].grouping if op.weight in self.coded else None
        if grouping is None or grouping.book is Codebook.E4M3:
            return None
        return min(row_group(op.weight.k, self.input_segments(op)), grouping.group)

    @property
    def has_integer_products(self) -> bool:
        """Whether any op multiplies integers."""
        return any(self.row_unit(op) is not None for op in self.program.ops)

    def input_segments(self, op: Op) -> tuple[int, ...]:
        return op.segments if isinstance(op, Linear) else ()

    @cached_property
    def weight_index(self) -> dict[Weight, int]:
        return {w: i for i, w in enumerate(self.program.weights)}

    @cached_property
    def coded(self) -> dict[Weight, Format]:
        """The matrices in a coded form."""
        return {w: self.forms[w.name] for w in self.program.weights if w.name in self.forms}

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of the KV cache, and from one to the next."""
        return self.program.kv_bytes_per_token * self.limits.block_size

    @cached_property
    def cache_places(self) -> dict[int, CachePlace]:
        """By layer number: where its keys and values lie in the pages of its group."""
        places: dict[int, CachePlace] = {}
        for index, group in enumerate(self.program.cache_groups):
            for layer in group.layers:
                start, shape = group.offsets[layer.layer] * self.limits.block_size, layer.shape
                keys = shape.k_width * layer.dtype.itemsize
                if shape.code is not None:
                    keys = shape.head_dim + SCALES * SCALE_BYTES
                values = start if shape.shared else start + keys * self.limits.block_size
                places[layer.layer] = CachePlace(group=index, keys=start, values=values, code=shape.code)
        return places

    @cached_property
    def state_offsets(self) -> dict[str, int]:
        """By name of a recurrent layer: where it begins in a state, in bytes."""
        return state_offsets(self.program.state_layers)

    @cached_property
    def table_index(self) -> dict[Rotary | Temperature, int]:
        """Tables by position, by number."""
        return {table: i for i, table in enumerate(self.program.position_tables)}


def _apart(nbytes: int) -> int:
    """From a row of so many bytes to the next."""
    padded = -(-nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
    return padded + CACHE_LINE_BYTES if padded % ALIAS_BYTES == 0 else padded


def check_heads(shape: HeadShape) -> None:
    """Raises UnsupportedModelError for those that attention has no kernel for."""
    for name, width in (("head_dim", shape.head_dim), ("value_dim", shape.v_dim)):
        if width % LANES:
            raise UnsupportedModelError(f"{name} {width}: the CPU kernels need a multiple of {LANES}")
    if shape.v_dim != shape.head_dim and shape.code is not None and not shape.shared:
        raise UnsupportedModelError(
            f"value_dim {shape.v_dim}: in a cache of {shape.code.value} the CPU kernels need values as wide "
            f"as keys, {shape.head_dim}"
        )
    if shape.shared and shape.kv_heads > 1:
        raise UnsupportedModelError(f"{shape.kv_heads} heads of latents: the CPU kernels need one")


def _sizes_in_lanes(op: Op) -> list[tuple[str, int]]:
    """Sizes that have to be whole vectors, each with its name."""
    match op:
        case DeltaRule(shape=shape):
            return [("key_dim", shape.key_dim), ("value_dim", shape.value_dim)]
        case StateSpace(shape=shape):
            return [("state_dim", shape.state_dim), ("head_dim", shape.head_dim)]
        case IndexTopK(shape=shape):
            return [("index_head_dim", shape.head_dim)]
        case RMSNorm(groups=groups) if groups > 1:
            return [("norm over", op.x.width // groups)]
        case _:
            return []
