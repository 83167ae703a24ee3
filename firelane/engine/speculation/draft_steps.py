"""Steps of a second model over the sequences of the served one: its slots follow theirs, and its keys and
values lie in pages that mirror theirs, so that prefixes are shared and sequences preempted once for both."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.contract import CAUSAL, SAMPLE, Executor, StepInputs, StepOutputs
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.speculation.page_tags import PageTags
from firelane.engine.speculation.proposer import Asked
from firelane.kv import BlockTables, PrefixChain


class DraftRun(NamedTuple):
    """Positions start .. start + length - 1 of a slot, whose tokens stand in the slot's state. draws: the
    token behind the last one is drawn, and written there."""

    slot: int
    start: int
    length: int
    draws: bool


class FollowedSlot:
    """A slot of the second model. computed: leading tokens whose keys and values are there; known: tokens of
    the sequence as the last `follow` saw them; capacity: tokens that its pages have room for, 0 where the
    second model does not know all of its tokens."""

    __slots__ = ("blocks", "capacity", "chain", "computed", "is_readable", "known", "pages", "tagged")

    def __init__(self, sequence: Sequence) -> None:
        assert sequence.blocks is not None
        self.blocks: BlockTables = sequence.blocks
        self.chain: PrefixChain = sequence.chain
        self.computed = self.known = self.capacity = 0
        self.is_readable = True
        """The second model knows all tokens."""
        self.pages: list[int] = []
        self.tagged = 0
        """Leading pages that have their tags."""


class DraftSteps:
    """Runs steps of `executor`, one at a time. It has as many slots and pages as the served model, of the
    same size, and takes sequences as long; each of its cache groups has as many pages again, the first one
    first."""

    def __init__(self, executor: Executor, served: Executor) -> None:
        """served: the model that it drafts for, which has a causal cache group. Owns neither."""
        self.executor, self.state = executor, executor.state
        self.limits = executor.limits
        self.vocab_size = min(executor.vocab_size, served.vocab_size)
        """Tokens that both know are below."""
        self._served, self._num_pages = served.state, served.limits.num_blocks
        self._group = served.limits.spans.index(CAUSAL)
        self._groups = range(len(executor.limits.spans))
        self._tags = PageTags(self._num_pages)
        self._slots: dict[int, FollowedSlot] = {}
        self._inputs = StepInputs.allocate(executor.limits)

    def follow(self, asked: Asked) -> FollowedSlot:
        """Have the slot's row as the served model has it: tokens, pages, sampling. What was computed of
        tokens that differ is not counted any more, nor the row of the last token, which draws the next."""
        slot, tokens = asked.slot, asked.tokens
        found = self._slots.get(slot)
        if found is None or found.blocks is not asked.sequence.blocks:
            found = self._begin(asked)
        else:
            found.computed = self._still_right(slot, found, tokens)
        first = min(found.computed, found.known)
        self.state.tokens[slot, first : len(tokens)] = tokens[first:]
        found.known = len(tokens)
        self._copy_pages(slot, found)
        if found.is_readable and int(tokens[first:].max()) >= self.vocab_size:
            found.is_readable, found.capacity = False, 0
        found.tagged = min(found.tagged, found.computed // self.limits.block_size)
        self._tag(slot, found)
        return found

    def mask(self, slot: int, *, is_masked: bool) -> None:
        """Whether what the slot draws next is what the served model's mask of it allows, as it is now."""
        self.state.sampling["masked"][slot] = is_masked
        if is_masked:
            words = min(self.state.masks.shape[1], self._served.masks.shape[1])
            self.state.masks[slot, :words] = self._served.masks[slot, :words]
            self.state.masks[slot, words:] = 0

    def step(self, runs: Several[DraftRun]) -> StepOutputs:
        """Compute `runs` in one step, each of another slot that was followed, with no more tokens together
        than limits.max_num_batched_tokens. The outputs have a row for each run that draws, in their order;
        they are valid until the next step."""
        for run in runs:
            self._tags.clear(self._written(run))
        _fill(self._inputs, runs)
        self.executor.submit(self._inputs)
        outputs = self.executor.wait()
        for run in runs:
            found = self._slots[run.slot]
            found.computed = run.start + run.length
            self._tag(run.slot, found)
        return outputs

    def forget(self, tenant: bytes) -> None:
        """Nothing of this tenant's texts is kept. What is left in its pages is named by nothing."""
        self._tags.forget(tenant)
        for slot, found in list(self._slots.items()):
            if found.chain.tenant == tenant:
                self.state.tokens[slot] = 0
                del self._slots[slot]

    def forget_all(self) -> None:
        """The memory of the pages is given back."""
        self._tags.forget_all()
        self._slots.clear()

    def _begin(self, asked: Asked) -> FollowedSlot:
        """Another sequence has the slot, or the same one with other pages."""
        slot, sequence, state = asked.slot, asked.sequence, self.state
        found = self._slots[slot] = FollowedSlot(sequence)
        state.sampling[slot] = self._served.sampling[slot]
        for name, value in (("logprobs", -1), ("masked", 0), ("num_reported", 0)):
            state.sampling[name][slot] = value
        self._copy_lists(slot)
        blocks = (len(asked.tokens) - 1) // self.limits.block_size
        names = sequence.chain.names(asked.tokens, blocks)[:blocks]
        found.tagged = self._tags.count_known(names, found.blocks.tables[self._group])
        found.computed = found.tagged * self.limits.block_size
        return found

    def _copy_lists(self, slot: int) -> None:
        """Tokens that the sampling of a slot names, where the second model knows them."""
        state, served, row = self.state, self._served, self.state.sampling[slot : slot + 1]
        stops = served.stop_ids[slot, : int(row["num_stop_ids"][0])]
        stops = stops[stops < self.vocab_size]
        state.stop_ids[slot, : len(stops)], row["num_stop_ids"] = stops, len(stops)
        ids = served.bias_ids[slot, : int(row["num_bias"][0])]
        known = np.flatnonzero(ids < self.vocab_size)
        state.bias_ids[slot, : len(known)] = ids[known]
        state.bias_values[slot, : len(known)] = served.bias_values[slot, known]
        row["num_bias"] = len(known)

    def _still_right(self, slot: int, found: FollowedSlot, tokens: NDArray[np.int32]) -> int:
        """Leading tokens that were computed, and are those of the sequence, but for its last one."""
        end = min(found.computed, len(tokens) - 1)
        first = min(found.known, end)
        differs = self.state.tokens[slot, first:end] != tokens[first:end]
        return first + int(differs.argmax()) if differs.any() else end

    def _copy_pages(self, slot: int, found: FollowedSlot) -> None:
        """Pages of a sequence only get more."""
        have = len(found.pages)
        new = found.blocks.tables[self._group][have:]
        if new:
            found.pages += new
            for group in self._groups:
                at = np.array(new, np.int32) + group * self._num_pages
                self.state.block_tables[group, slot, have : len(found.pages)] = at
            if found.is_readable:
                found.capacity = len(found.pages) * self.limits.block_size

    def _written(self, run: DraftRun) -> list[int]:
        size = self.limits.block_size
        last = (run.start + run.length - 1) // size
        return self._slots[run.slot].pages[run.start // size : last + 1]

    def _tag(self, slot: int, found: FollowedSlot) -> None:
        """Name pages that are full of tokens of the sequence."""
        full = min(found.computed, found.known) // self.limits.block_size
        if full <= found.tagged:
            return
        names = found.chain.names(self.state.tokens[slot], full)
        for index in range(found.tagged, full):
            self._tags.fill(found.pages[index], names[index], found.chain.tenant)
        found.tagged = full


def _fill(inputs: StepInputs, runs: Several[DraftRun]) -> None:
    """The arrays of a step of `runs`."""
    inputs.num_chunks = len(runs)
    inputs.num_tokens = inputs.num_rows = 0
    for index, run in enumerate(runs):
        inputs.chunk_slot[index] = run.slot
        inputs.chunk_start[index] = run.start
        inputs.chunk_len[index] = run.length
        inputs.num_tokens += run.length
        if run.draws:
            row = inputs.num_rows
            inputs.row_token[row] = inputs.num_tokens - 1
            inputs.row_slot[row] = run.slot
            inputs.row_position[row] = run.start + run.length - 1
            inputs.row_kind[row] = SAMPLE
            inputs.row_mask[row] = 0
            inputs.num_rows += 1
