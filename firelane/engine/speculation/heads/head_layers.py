"""HeadLayers: the rows of all sequences, through the layers of a head.

A head has one layer, or several. The first one reads what the target has computed, each further one what the
layer before has told of the same position, and the token one place further on ("multi-token prediction",
DeepSeek V3, 2024): layer k draws token k of a draft, counted from 0. The last k rows of a text that layer k
has computed read drafted tokens: they are computed again when the text is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.contract import NOTHING, GivenBack, SlotState
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.speculation.heads.head_rows import HeadRows
from firelane.engine.speculation.heads.head_steps import Drawn, HeadChunk, HeadSteps
from firelane.engine.speculation.heads.waiting_rows import WaitingRows
from firelane.engine.speculation.page_tags import PageTags
from firelane.engine.speculation.proposer import ComputedRows

F32 = NDArray[np.float32]
Tokens = NDArray[np.int32]
MOST_WAITING = 8
"""Rows of a sequence that wait for its next draft, which computes them beside its own first one."""


@dataclass
class HeadText:
    """A sequence as far as the head knows it, by layer."""

    sequence: Sequence
    layers: list[WaitingRows]
    origin: int = 0
    """The first row that the head knows: a sequence may begin with pages that it never saw."""

    @property
    def first(self) -> WaitingRows:
        return self.layers[0]

    def num_sure(self, depth: int) -> int:
        """Rows that wait in this layer, and read no drafted token. The last row of the first layer is left to
        the next draft, which begins with it."""
        layer = self.layers[depth]
        if not depth:
            return max(0, layer.count - 1)
        return max(0, min(layer.count, self.first.computed - depth - layer.computed))


class HeadLayers:
    """Computes rows, and draws. steps: of each layer, whose pages are those of the target. texts: by slot."""

    def __init__(self, rows: HeadRows, steps: Several[HeadSteps], state: SlotState) -> None:
        """state: of the target's slots. Owns none of them."""
        self.rows, self._state = rows, state
        self.first, self.texts = steps[0], dict[int, HeadText]()
        self._all, self._steps = steps, steps[: steps[0].most_rows]
        self._tags = PageTags(self.first.num_pages)
        self._tentative: dict[int, F32] = {}
        """By slot, what the last layer that drew has told of rows that read drafted tokens."""

    @property
    def depth(self) -> int:
        """Layers, each of which draws a token of a draft."""
        return len(self._steps)

    def text(self, run: ComputedRows) -> HeadText:
        """The text of this slot as it is known before the rows of `run`. A sequence that was preempted begins
        anew."""
        text = self.texts.get(run.slot)
        if text is None or text.sequence is not run.sequence or run.begins:
            there = self._there(run)
            return self._begun(run, there) if there == run.start else self._begun_behind_a_gap(run)
        return self._begun_behind_a_gap(run) if text.first.stop < run.start else text

    def _begun_behind_a_gap(self, run: ComputedRows) -> HeadText:
        """The head knows no row before the run. To it the sequence begins with the next page: its drafts are
        worse at first, and no answer changes."""
        origin = -(-run.start // self.first.block_size) * self.first.block_size
        return self._begun(run, origin, origin)

    def _begun(self, run: ComputedRows, computed: int, origin: int = 0) -> HeadText:
        layers = [WaitingRows(computed) for _ in self._steps]
        text = self.texts[run.slot] = HeadText(run.sequence, layers, origin)
        return text

    def compute(self, slots: Several[int]) -> None:
        """Compute the rows of these slots that wait and are sure."""
        for depth in range(self.depth):
            self._compute_layer(depth, slots)

    def compute_long(self, slots: Several[int]) -> None:
        """The same, in further layers where many rows wait for a draft that goes so far."""
        for depth in range(1, self.depth):
            waits = [slot for slot in slots if self.texts[slot].layers[depth].count > MOST_WAITING]
            self._compute_layer(depth, waits)

    def draw_first(self, slots: Several[int]) -> Drawn:
        """The first token of each draft, behind all rows that wait."""
        texts = [self.texts[slot] for slot in slots]
        if sum(text.first.count for text in texts) > self.first.most_rows:
            self._compute_layer(0, slots)
        chunks = [self._chunk(slot, 0, self.texts[slot].first.count) for slot in slots]
        drawn = self._draw(0, chunks)
        self._pass_on(0, chunks, drawn.told)
        self._tentative = {slot: rows[:0] for slot, rows in zip(slots, drawn.told, strict=True)}
        return drawn

    def draw_next(self, slots: Several[int], drafts: Several[list[int]]) -> Drawn:
        """One more token of each draft, by the layer that is for it. slots: for which the layer before has
        drawn; drafts: their tokens so far, equally many."""
        depth = len(drafts[0])
        rows = [self._num_rows(depth, slot) for slot in slots]
        if sum(rows) > self.first.most_rows:
            self._compute_layer(depth, slots)
        chunks = [self._deep_chunk(slot, draft) for slot, draft in zip(slots, drafts, strict=True)]
        drawn = self._draw(depth, chunks)
        for chunk, told in zip(chunks, drawn.told, strict=True):
            self._note_sure(depth, chunk, told)
        return drawn

    def _note_sure(self, depth: int, chunk: HeadChunk, told: F32) -> None:
        """A further layer has computed a draft's rows, of which the first ones read no drafted token."""
        text = self.texts[chunk.slot]
        count = text.num_sure(depth)
        self._tentative[chunk.slot] = told[count:]
        if count:
            text.layers[depth].take(count)
            self._pass_on(depth, [chunk._replace(rows=chunk.rows[:count])], [told[:count]])

    def draw_behind(self, places: Several[tuple[int, int]], tokens: Tokens, told: F32) -> Drawn:
        """One more token of each draft, by the last layer, which goes on from what it has told. places: slots
        and positions; tokens, told: of the rows before."""
        rows = np.empty((len(places), self.rows.row_width), np.float32)
        self.rows.write_drafted(rows, tokens, told)
        return self._draw(
            self.depth - 1,
            [self._made(slot, start, rows[i : i + 1]) for i, (slot, start) in enumerate(places)],
        )

    def forget(self, tenant: bytes) -> None:
        """Nothing of this tenant's texts is kept. tenant: as in PrefixChain."""
        for slot, text in list(self.texts.items()):
            if text.sequence.chain.tenant == tenant:
                del self.texts[slot]
        self._tentative.clear()
        self._tags.forget(tenant)

    def standby(self) -> GivenBack:
        """Give back memory, as Executor.standby does."""
        self._tags.forget_all()
        self.texts.clear()
        given = NOTHING
        for steps in self._all:
            one = steps.executor.standby()
            given = GivenBack(*(a + b for a, b in zip(given, one, strict=True)))
        return given

    def wake(self) -> None:
        """Have it again, as Executor.wake does."""
        for steps in self._all:
            steps.executor.wake()

    def _there(self, run: ComputedRows) -> int:
        """Leading rows before the run that the head has computed, of this sequence or of one that began
        alike. The last rows of a page were computed with tokens behind the page, of which that one may have
        had others: drafts are a little worse then, and no answer changes."""
        size = self.first.block_size
        names = run.sequence.chain.names(self._state.tokens[run.slot], run.start // size)
        tables = self.first.tables(run.slot).tolist()
        return size * self._tags.count_known(names[: run.start // size], tables)

    def _compute_layer(self, depth: int, slots: Several[int]) -> None:
        while slots := [slot for slot in slots if self.texts[slot].num_sure(depth)]:
            chunks, left = list[HeadChunk](), self.first.most_rows
            for slot in slots:
                count = min(self.texts[slot].num_sure(depth), left)
                if count:
                    chunks.append(self._chunk(slot, depth, count))
                    left -= count
            self._spoil(chunks)
            self._pass_on(depth, chunks, self._steps[depth].compute(chunks))

    def _chunk(self, slot: int, depth: int, count: int) -> HeadChunk:
        """The first rows of a text that wait in a layer, which count as computed from now on."""
        layer = self.texts[slot].layers[depth]
        start, behind = layer.computed, layer.computed + depth + 1
        tokens = self._state.tokens[slot, behind : behind + count]
        return self._made(slot, start, self._written(depth, tokens, layer.take(count)))

    def _made(self, slot: int, start: int, rows: F32) -> HeadChunk:
        return HeadChunk(slot, start, rows, self.texts[slot].origin)

    def _num_rows(self, depth: int, slot: int) -> int:
        """Rows of a text that its draft computes in a further layer."""
        text = self.texts[slot]
        return text.first.computed - text.layers[depth].computed

    def _deep_chunk(self, slot: int, draft: list[int]) -> HeadChunk:
        """All rows of a further layer that wait, and those that read drafted tokens."""
        text, told, depth = self.texts[slot], self._tentative[slot], len(draft)
        layer, known = text.layers[depth], text.first.computed + 1
        read = np.concatenate([layer.all(told.shape[1]), told])
        tokens = np.append(self._state.tokens[slot, layer.computed + 1 : known], np.array(draft, np.int32))
        return self._made(slot, layer.computed, self._written(depth, tokens[depth:], read))

    def _written(self, depth: int, tokens: Tokens, read: F32) -> F32:
        rows = np.empty((len(read), self.rows.row_width), np.float32)
        (self.rows.write_drafted if depth else self.rows.write_verified)(rows, tokens, read)
        return rows

    def _draw(self, depth: int, chunks: Several[HeadChunk]) -> Drawn:
        """In as many steps as the rows need."""
        self._spoil(chunks)
        return Drawn.joined([self._steps[depth].draw(part) for part in self._parts(chunks)])

    def _parts(self, chunks: Several[HeadChunk]) -> Iterator[list[HeadChunk]]:
        part, rows = list[HeadChunk](), 0
        for chunk in chunks:
            if rows + len(chunk.rows) > self.first.most_rows:
                yield part
                part, rows = [], 0
            part.append(chunk)
            rows += len(chunk.rows)
        yield part

    def _pass_on(self, depth: int, chunks: Several[HeadChunk], told: Several[F32]) -> None:
        """Verified rows are computed: the next layer may read what was told, and of the last one the pages
        that are full now get their names."""
        if depth + 1 == self.depth:
            self._note_computed(chunks)
            return
        for chunk, rows in zip(chunks, told, strict=True):
            self.texts[chunk.slot].layers[depth + 1].add(rows)

    def _spoil(self, chunks: Several[HeadChunk]) -> None:
        """Pages are written to: what they had is gone."""
        size = self.first.block_size
        for slot, start, rows, _ in chunks:
            first, last = start // size, (start + len(rows) - 1) // size
            self._tags.clear(self.first.tables(slot)[first : last + 1].tolist())

    def _note_computed(self, chunks: Several[HeadChunk]) -> None:
        """Name the pages that are full now, of verified rows. A text that begins behind a gap names none: its
        rows have not seen all that is before them."""
        size = self.first.block_size
        for slot, start, rows, origin in chunks:
            if origin:
                continue
            chain, table = self.texts[slot].sequence.chain, self.first.tables(slot)
            full = (start + len(rows)) // size
            names = chain.names(self._state.tokens[slot], full)
            for block in range(start // size, full):
                self._tags.fill(int(table[block]), names[block], chain.tenant)
