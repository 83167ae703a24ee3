"""Program: a model as a flat list of ops over named values. Every backend, and every pass, starts from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from firelane.contract.span import CAUSAL, Bidirectional, Span
from firelane.program.cache import CacheGroup, CacheLayer, Grouping, group_layers, regroup_layers
from firelane.program.ops import (
    Attention,
    GatherRows,
    GiveHidden,
    IndexCache,
    IndexTopK,
    LatentCache,
    Linear,
    Op,
    Product,
    ReadFeatures,
    RopeAndCache,
    Rotary,
    TellFeatures,
    Temperature,
)
from firelane.program.state import StateLayer, state_bytes
from firelane.program.values import Cost, Rows, StepShape, Value, Weight


@dataclass(frozen=True, kw_only=True)
class Program:
    """A whole model. `max_model_len` is the longest sequence that the checkpoint was made for, in tokens."""

    name: str
    vocab_size: int
    max_model_len: int
    ops: tuple[Op, ...]
    head: Linear | None = None
    """The op that makes the logits; its input is the model's hidden state. None: of a program without."""
    can_generate: bool = True
    """Whether its logits mean something. False: the checkpoint has no head, the embedding table stands in for
    it, and only hidden states may be asked for."""
    left_out: tuple[str, ...] = ()
    """Beginnings of names of the checkpoint's tensors that the model has and this program does without."""
    streams: tuple[Value, ...] = ()
    """The residual stream into each layer, and out of the last one: what heads that draft may read of it (see
    features.py). (): nobody has said."""

    unknown_keys: tuple[str, ...] = field(default=(), compare=False)
    """Keys of config.json that nobody knows here, and that the program does without."""

    grouping: Grouping | None = None
    """Cache groups of the model that this is a stage of: pages have the same numbers in all stages. None:
    they follow from the layers."""

    def __post_init__(self) -> None:
        """Checks that each value is made once, before it is used, and that the head is one of the ops."""
        assert self.head is None or self.head in self.ops, f"{self.name}: its head is none of its ops"
        made: set[Value] = set()
        names: set[str] = set()
        for op in self.ops:
            for value in op.inputs:
                assert value in made, f"{type(op).__name__} uses {value.name} before it is made"
            for value in op.outputs:
                assert value.name not in names, f"{value.name} is made twice"
                names.add(value.name)
                made.add(value)
        self._check_features()
        states = [layer.name for layer in self.state_layers]
        assert len(set(states)) == len(states), f"{self.name}: two state layers of one name in {states}"

    def _check_features(self) -> None:
        """That columns are told once each, and read once each, without gaps."""
        for kind in (TellFeatures, ReadFeatures):
            columns = sorted(c for op in self.ops if isinstance(op, kind) for c in op.columns)
            assert columns == list(range(len(columns))), (
                f"{self.name}: columns of features overlap or are missing"
            )

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Each weight once, in order of first use (a tied weight is one Weight used by two ops)."""
        return tuple(dict.fromkeys(w for op in self.ops for w in op.weights))

    @property
    def products(self) -> tuple[Product, ...]:
        """Every matrix product, in order."""
        return tuple(product for op in self.ops for product in op.products)

    @property
    def position_tables(self) -> tuple[Rotary | Temperature, ...]:
        """Tables by position that a backend keeps, each once."""
        made = (op.tables for op in self.ops if isinstance(op, RopeAndCache | LatentCache | IndexCache))
        return tuple(dict.fromkeys(table for tables in made for table in tables))

    @property
    def hidden_width(self) -> int:
        """Width of the hidden states that it gives; 0: it gives none."""
        if self.head:
            return self.head.x.width
        return next((op.x.width for op in self.ops if isinstance(op, GiveHidden)), 0)

    @cached_property
    def features_in(self) -> int:
        """Width of the features that it reads; 0: none."""
        return sum(op.out.width for op in self.ops if isinstance(op, ReadFeatures))

    @cached_property
    def features_out(self) -> int:
        """Width of the features that it tells; 0: none."""
        return sum(op.x.width for op in self.ops if isinstance(op, TellFeatures))

    @cached_property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        """Each once, also where several ops attend to it."""
        found = dict.fromkeys(layer for op in self.ops if (layer := cache_layer(op)) is not None)
        numbers = [layer.layer for layer in found]
        assert len(set(numbers)) == len(numbers), f"{self.name}: one cache layer of two kinds in {numbers}"
        return tuple(found)

    @cached_property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        if self.grouping is not None:
            return regroup_layers(self.cache_layers, self.grouping)
        return group_layers(self.cache_layers)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans of the cache groups, in the order that StepLimits wants."""
        return tuple(group.span for group in self.cache_groups)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token in one cache group; a page has block_size times as many."""
        return self.cache_groups[0].bytes_per_token if self.cache_groups else 0

    @cached_property
    def state_layers(self) -> tuple[StateLayer, ...]:
        """Recurrent state, in the order of the ops that keep it."""
        return tuple(layer for op in self.ops for layer in op.states)

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent state of one sequence; 0 where the program keeps none."""
        return state_bytes(self.state_layers)

    @property
    def weights_bytes(self) -> int:
        return sum(w.nbytes for w in self.weights)

    @cached_property
    def row_ranks(self) -> int:
        """Ranks among which the rows of a step are divided where values have OWN ones; else 1."""
        return max((op.ranks for op in self.ops if isinstance(op, GatherRows)), default=1)

    def op_cost(self, op: Op, shape: StepShape) -> Cost:
        """In a step of this size."""
        return op.cost(shape.share(self.row_ranks) if computes_own_rows(op) else shape)

    def cost(self, shape: StepShape) -> Cost:
        total = Cost()
        for op in self.ops:
            total = total + self.op_cost(op, shape)
        return total


def cache_layer(op: Op) -> CacheLayer | None:
    """The layer of the cache that an op reads, if it reads one. What is attended to on both sides is kept
    whole until its step is over."""
    match op:
        case Attention():
            return CacheLayer(layer=op.layer, shape=op.shape, dtype=op.out.dtype, span=_kept(op.span))
        case IndexTopK():
            return CacheLayer(layer=op.layer, shape=op.shape, dtype=op.q.dtype, span=CAUSAL)
        case _:
            return None


def _kept(span: Span) -> Span:
    """The positions that the cache keeps for queries of this span: of both sides, all of a sequence."""
    return Bidirectional() if isinstance(span, Bidirectional) else span


def computes_own_rows(op: Op) -> bool:
    """Whether an op computes the rows of this rank's tokens alone."""
    return any(value.rows is Rows.OWN for value in op.outputs)
