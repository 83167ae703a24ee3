"""HeadSteps: steps of a head's executor, one after the other, between those of the target."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.contract import CAUSAL, SAMPLE, Executor, SlotState, StepInputs, StepOutputs
from firelane.engine.sequences.sequence import Sequence
from firelane.errors import UsageError

F32 = NDArray[np.float32]


class HeadChunk(NamedTuple):
    """Consecutive rows of one slot, from position `start` on. rows: float32 [n, the head's row width].
    origin: the position of the first row that the head knows of the sequence, where a page begins."""

    slot: int
    start: int
    rows: F32
    origin: int = 0

    @property
    def last(self) -> int:
        """The place of its last row, counted from the first one that the head knows."""
        return self.start - self.origin + len(self.rows) - 1


class Drawn(NamedTuple):
    """Results of the last row of each chunk. numbers: int32 [chunks], of the head's vocabulary; chances:
    float32 [chunks], of each number; told: float32 [chunks][rows, width], of all rows of each chunk."""

    numbers: NDArray[np.int32]
    chances: F32
    told: list[F32]

    @classmethod
    def joined(cls, parts: Several[Drawn]) -> Drawn:
        """The results of several steps, one after the other."""
        if len(parts) == 1:
            return parts[0]
        numbers = np.concatenate([part.numbers for part in parts])
        chances = np.concatenate([part.chances for part in parts])
        return cls(numbers, chances, [rows for part in parts for rows in part.told])

    def last_told(self) -> F32:
        """float32 [chunks, width]: of the last row of each chunk."""
        return np.stack([rows[-1] for rows in self.told])


class HeadSteps:
    """Runs rows of a head beside its target, whose slots and pages its own are: a page of the one has the
    same tokens as the page of the same number of the other."""

    def __init__(self, executor: Executor, target: Executor) -> None:
        """Owns neither. Raises UsageError where the pages do not go together."""
        self.executor, self._tables = executor, target.state.block_tables
        self._group = _whole_group(target)
        ours, theirs = executor.limits, target.limits
        assert ours.block_size == theirs.block_size, "pages of a head have other sizes"
        assert ours.num_blocks >= theirs.num_blocks, "a head has fewer pages"
        assert ours.max_num_seqs >= theirs.max_num_seqs, "a head has fewer slots"
        assert executor.features_in, "a head reads no features"
        self._inputs = StepInputs.allocate(ours, executor.features_in)
        self.most_rows, self.block_size = ours.max_num_batched_tokens, ours.block_size
        self.num_pages = theirs.num_blocks
        _draw_greedily(executor.state)

    def tables(self, slot: int) -> NDArray[np.int32]:
        """The pages of a slot, in the order of its positions."""
        return self._tables[self._group, slot]

    def capacity(self, sequence: Sequence) -> int:
        """Positions that its pages have room for."""
        assert sequence.blocks is not None
        return len(sequence.blocks.tables[self._group]) * self.executor.limits.block_size

    def compute(self, chunks: Several[HeadChunk]) -> list[F32]:
        """Have keys and values of these rows, most_rows at most; nothing is drawn. Returns what is told of
        the rows of each chunk, float32 [rows, width], valid until the next step."""
        return _by_chunk(self._run(chunks, draws=False).features, chunks)

    def draw(self, chunks: Several[HeadChunk]) -> Drawn:
        """The same, and draw behind the last row of each chunk the number that is the most likely."""
        outputs = self._run(chunks, draws=True)
        count, rows = len(chunks), sum(len(chunk.rows) for chunk in chunks)
        told = _by_chunk(outputs.features[:rows].copy(), chunks)
        return Drawn(outputs.tokens[:count].copy(), np.exp(outputs.logprobs[:count]), told)

    def _run(self, chunks: Several[HeadChunk], *, draws: bool) -> StepOutputs:
        inputs, at = self._inputs, 0
        for i, chunk in enumerate(chunks):
            count, slot = len(chunk.rows), chunk.slot
            inputs.chunk_slot[i], inputs.chunk_len[i] = slot, count
            inputs.chunk_start[i] = chunk.start - chunk.origin
            inputs.features[at : at + count] = chunk.rows
            known = self.tables(slot)[chunk.origin // self.block_size :]
            self.executor.state.block_tables[0, slot, : len(known)] = known
            at += count
        inputs.num_chunks, inputs.num_tokens, inputs.num_rows = len(chunks), at, 0
        if draws:
            self._add_outputs(chunks)
        self.executor.submit(inputs)
        return self.executor.wait()

    def _add_outputs(self, chunks: Several[HeadChunk]) -> None:
        inputs, count = self._inputs, len(chunks)
        inputs.row_token[:count] = self._last_rows(chunks)
        inputs.row_slot[:count] = [chunk.slot for chunk in chunks]
        inputs.row_position[:count] = [chunk.last for chunk in chunks]
        inputs.row_kind[:count] = SAMPLE
        inputs.num_rows = count

    def _last_rows(self, chunks: Several[HeadChunk]) -> NDArray[np.int64]:
        return np.cumsum([len(chunk.rows) for chunk in chunks]) - 1


def _by_chunk(rows: F32, chunks: Several[HeadChunk]) -> list[F32]:
    stops = np.cumsum([len(chunk.rows) for chunk in chunks]).tolist()
    return [rows[stop - len(chunk.rows) : stop] for stop, chunk in zip(stops, chunks, strict=True)]


def _whole_group(target: Executor) -> int:
    """The target's cache group whose pages hold all positions of a sequence."""
    spans = target.limits.spans
    if CAUSAL not in spans:
        raise UsageError("--speculative: a head needs a model with attention over all tokens in some layer")
    return spans.index(CAUSAL)


def _draw_greedily(state: SlotState) -> None:
    """Sampling parameters of all slots; their log-probabilities are asked for."""
    state.sampling["temperature"] = 0.0
    state.sampling["top_p"] = 1.0
    state.sampling["repetition_penalty"] = 1.0
    state.sampling["logprobs"] = 0
