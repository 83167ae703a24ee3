"""Random steps of attention: pages poisoned where nothing was written or the span has left it behind, and
block tables where there is no page; the pages in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from firelane.backends.cuda.device.shapes import ATTENTION_SPLIT, round_up
from firelane.backends.cuda.kernels.attention.attention_merge import merge_splits
from firelane.backends.cuda.kernels.attention.attention_split import attend_splits
from firelane.backends.cuda.kernels.attention.attention_tiles import attend_tiles, tile_tokens
from firelane.backends.cuda.step import tables as t
from firelane.backends.cuda.step.kv_pages import LayerCache, layer_cache
from firelane.backends.cuda.step.tables import StepTables
from firelane.contract import CAUSAL, Span, StepLimits, kept_from
from firelane.program.cache import CacheLayer
from firelane.program.ops import Attention, HeadShape
from firelane.program.reference_step import ReferenceCache, ReferenceStep, rounded
from firelane.program.values import DType, Rows, Value, Weight
from tests.backends.cuda.host_device import HostDevice, poison

TORCH = {DType.F32: torch.float32, DType.BF16: torch.bfloat16}
DEVICE = HostDevice()
GROUP = 1  # of two cache groups
PADDING = 24  # elements per token of a page that are another layer's


@dataclass(frozen=True)
class Piece:
    """A chunk of slot `slot`: `length` tokens from position `start` on. in_kv_splits: one token, decoded."""

    slot: int
    start: int
    length: int = 1
    in_kv_splits: bool = False

    @property
    def end(self) -> int:
        return self.start + self.length


def decoded(slot: int, position: int) -> Piece:
    return Piece(slot, position, in_kv_splits=True)


@dataclass(kw_only=True)
class Scene:
    """Queries, keys and values of every position of some slots; the same ones whatever steps are made of
    them. first_block: blocks below are in no use, nor in memory. tile_tokens: 0 for as many as fill
    a tile."""

    shape: HeadShape
    dtype: DType = DType.BF16
    span: Span = CAUSAL
    block_size: int = 64
    slots: int = 1
    max_len: int = 600
    seed: int = 0
    programs: int = 2
    first_block: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    tile_tokens: int = 0
    op: Attention = field(init=False)

    def __post_init__(self) -> None:
        s, rng = self.shape, np.random.default_rng(self.seed)

        def draw(*shape: int) -> np.ndarray:
            return rounded(rng.standard_normal(shape).astype(np.float32), self.dtype)

        self.q = draw(self.slots, self.max_len, s.heads * s.head_dim) * 2
        self.k = draw(self.slots, self.max_len, s.kv_heads, s.head_dim)
        self.v = self.k[..., : s.v_dim] if s.shared else draw(*self.k.shape[:-1], s.v_dim)
        widths, scale = {"q": s.q_width, "out": s.out_width}, s.head_dim**-0.5
        q, out = (Value(n, Rows.TOKEN, width, self.dtype) for n, width in widths.items())
        self.sinks = rng.standard_normal(s.heads).astype(np.float32) if self.has_sinks else None
        self.op = Attention(
            q=q,
            layer=0,
            shape=s,
            scale=scale,
            span=self.span,
            softcap=self.softcap,
            sinks=Weight.stored("sinks", (s.heads,), DType.F32) if self.has_sinks else None,
            out=out,
        )
        self.per_tile = self.tile_tokens or tile_tokens(s.group)
        per_slot = -(-self.max_len // self.block_size)
        self.num_blocks = self.first_block + self.slots * per_slot + 3
        used = self.first_block + rng.permutation(self.slots * per_slot + 3)
        self.blocks = used[: self.slots * per_slot].reshape(self.slots, per_slot)

    def attend(self, pieces: Sequence[Piece], *, spare: int = 3) -> np.ndarray:
        """The rows of a step, by the kernels: float32 [tokens, width]. spare: how many more chunks, tokens,
        kv_splits and tiles the launches are made for."""
        tables = self.tables(pieces, spare)
        tokens, width = sum(p.length for p in pieces), self.op.out.width
        q, out = (
            poison(torch.empty(tokens + spare, round_up(n, 64) + 64, dtype=TORCH[self.dtype]))
            for n in (self.op.q.width, width)
        )
        if pieces:
            q[:tokens, : self.op.q.width] = torch.from_numpy(self.queries(pieces))
        for launch in self.launches(q, out, tables, len(pieces) + spare):
            launch.run()
        assert out[tokens:].isnan().all(), "wrote rows beyond the count"
        assert out[:, width:].isnan().all(), "wrote columns beyond the width"
        return out[:tokens, :width].float().numpy()

    def launches(self, q: Tensor, out: Tensor, tables: StepTables, max_chunks: int):
        cache = self.cache(tables)
        s, kv_splits = self.shape, tables.max_kv_splits
        partial = poison(torch.empty(kv_splits, s.heads, s.v_dim))
        stats = poison(torch.empty(kv_splits, s.heads, 2))
        yield attend_splits(
            q, cache, tables, op=self.op, partial=partial, stats=stats, programs=self.programs
        )
        sinks = None if self.sinks is None else torch.from_numpy(self.sinks)
        yield merge_splits(
            tables, op=self.op, partial=partial, stats=stats, sinks=sinks, out=out, max_chunks=max_chunks
        )
        tiles = tables.tiles.shape[0]
        yield attend_tiles(
            q, cache, tables, out, op=self.op, sinks=sinks, tokens=self.per_tile, max_tiles=tiles
        )

    def queries(self, pieces: Sequence[Piece]) -> np.ndarray:
        return np.concatenate([self.q[p.slot, p.start : p.end] for p in pieces])

    def cache(self, tables: StepTables) -> LayerCache:
        """The second of two layers of a page; each chunk's context written as far as its span sees it, and
        nothing else."""
        s, size = self.shape, self.block_size
        layer = CacheLayer(layer=0, shape=s, dtype=self.dtype, span=self.span)
        pool = torch.empty(self.num_blocks, (s.cached_width + PADDING) * size, dtype=TORCH[self.dtype])
        poison(pool[self.first_block :])
        cache = layer_cache(pool, layer, PADDING * self.dtype.itemsize, size, GROUP)
        for chunk in tables.chunks[: tables.counts[t.CHUNKS]].tolist():
            slot, start, end = chunk[t.SLOT], chunk[t.START], chunk[t.START] + chunk[t.LENGTH]
            for position in range(kept_from(self.span, start), end):
                place = int(self.blocks[slot, position // size]), slice(None), position % size
                cache.keys[place] = torch.from_numpy(self.k[slot, position])
                cache.values[place] = torch.from_numpy(self.v[slot, position])
        return cache

    def tables(self, pieces: Sequence[Piece], spare: int) -> StepTables:
        """Return the tables as the step's first kernel leaves them, with garbage beyond the counts."""
        tokens = sum(p.length for p in pieces)
        sizes = StepLimits(
            max_num_seqs=len(pieces) + spare,
            max_num_batched_tokens=tokens + spare,
            max_output_rows=4,
            max_model_len=self.max_len,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            spans=(CAUSAL, self.span),
        )
        tables = StepTables.allocate(sizes, tile_tokens=self.per_tile, device=DEVICE)
        kv_splits: list[tuple[int, int]] = []
        tiles: list[tuple[int, int]] = []
        poison(tables.block_tables)
        token = 0
        for i, p in enumerate(pieces):
            first_kv_split, first_tile = (len(kv_splits), -1) if p.in_kv_splits else (-1, len(tiles))
            row = [p.slot, p.start, p.length, token, first_kv_split, first_tile, 0, 0]
            tables.chunks[i, : len(row)] = torch.tensor(row, dtype=torch.int32)
            kept = slice(kept_from(self.span, p.start) // self.block_size, -(-p.end // self.block_size))
            tables.block_tables[GROUP, i, kept] = torch.from_numpy(self.blocks[p.slot, kept]).int()
            if p.in_kv_splits:
                kv_splits += [(i, split) for split in range(-(-p.end // ATTENTION_SPLIT))]
            else:
                tiles += [(i, first) for first in range(0, p.length, self.per_tile)]
            token += p.length
        for table, rows in ((tables.kv_splits, kv_splits), (tables.tiles, tiles)):
            poison(table)[: len(rows)] = torch.tensor(rows, dtype=torch.int32).reshape(-1, 2)
        counts = {t.CHUNKS: len(pieces), t.TOKENS: token, t.KV_SPLITS: len(kv_splits), t.TILES: len(tiles)}
        for index, count in counts.items():
            tables.counts[index] = count
        return tables

    def expected(self, pieces: Sequence[Piece]) -> np.ndarray:
        """The rows of a step by Attention.reference."""
        lengths = [p.length for p in pieces]
        step = ReferenceStep(
            token_ids=np.zeros(sum(lengths), np.int64),
            slots=np.repeat([p.slot for p in pieces], lengths),
            positions=np.concatenate([np.arange(p.start, p.end) for p in pieces]),
            row_token=np.zeros(0, np.int64),
            weights={} if self.sinks is None else {"sinks": self.sinks},
            cache=ReferenceCache(keys={0: self.k}, values={0: self.v}, dtypes={0: self.dtype}),
            values={self.op.q: self.queries(pieces)},
        )
        self.op.reference(step)
        return step.read(self.op.out)
