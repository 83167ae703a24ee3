"""Tests that an Executor must pass whose program keeps recurrent state, beside those of every executor."""

from __future__ import annotations

import numpy as np
import pytest
from executor_contract import PROMPT, ExecutorContract

from firelane.contract import EMBED, SAMPLE


class RecurrentContract(ExecutorContract):
    """An executor whose program keeps recurrent state must pass these tests, with four snapshots and two
    spare states at least."""

    PROMPT = PROMPT * 5

    def test_a_sequence_goes_on_behind_a_rejected_draft(self, executor, batch):
        """From its live state, which is the one before the draft."""
        alone = batch.generate(0, [2, 7, 1, 8], 4, seed=5)
        batch.install(0, [2, 7, 1, 8], seed=5)
        batch.step((0, 0, 4, {3: SAMPLE}))
        executor.state.tokens[0, 5:7] = [(alone[1] + 1) % executor.vocab_size, 0]
        rows = dict.fromkeys(range(4, 7), SAMPLE)
        drawn = batch.step((0, 4, 3, rows), drafts={0: (2, 1)}).tokens[0]
        rest = [batch.step((0, at, 1, {at: SAMPLE})).tokens[0] for at in (5, 6)]
        assert [drawn, *rest] == alone[1:]

    @pytest.mark.parametrize("right", range(5))
    def test_the_states_before_and_behind_a_draft(self, batch, right):
        """Drafted tokens that are right are computed anew from the live state, unless all are; then the spare
        state goes on, and is written again in the same step. The hidden states are those of a sequence
        without drafts, in a crowd, in both."""
        prompt = self.PROMPT[:24]
        whole = batch.hidden(3, prompt)
        wrong = [*prompt[: 7 + right], *(token ^ 1 for token in prompt[7 + right :])]
        batch.install(0, wrong)
        batch.step((0, 0, 6, {}))
        drafted = 5 if right < 4 else 4
        every = dict.fromkeys(range(6, 7 + drafted), EMBED)
        batch.install(1, prompt)
        found = batch.step(
            (0, 6, 1 + drafted, every), (1, 0, 3, {2: EMBED}), drafts={0: (drafted, 1)}, saves={0: 2}
        ).hidden
        np.testing.assert_array_equal(found[: 1 + right], whole[6 : 7 + right])
        np.testing.assert_array_equal(found[1 + drafted], whole[2])
        batch.executor.state.tokens[0, : len(prompt)] = prompt
        start, begins = (7, {}) if right < 4 else (11, {0: batch.limits.num_snapshots + 1})
        rows = dict.fromkeys(range(start, 15), EMBED)
        found = batch.step(
            (0, start, 15 - start, rows), (1, 3, 2, {4: EMBED}), begins=begins, drafts={0: (3, 1)}
        ).hidden
        np.testing.assert_array_equal(found[: 15 - start], whole[start:15])
        np.testing.assert_array_equal(found[15 - start], whole[4])
        spare = {0: batch.limits.num_snapshots + 1}
        for first, state in ((12, {}), (15, spare), (7, {0: 2})):  # live, behind the draft, saved before
            rows = dict.fromkeys(range(first, 20), EMBED)
            found = batch.step((0, first, 20 - first, rows), begins=state).hidden
            np.testing.assert_array_equal(found[: 20 - first], whole[first:20])

    def test_sizes_of_states(self, executor):
        limits = executor.limits
        assert limits.state_bytes > 0
        assert limits.first_spare == limits.max_num_seqs + limits.num_snapshots >= limits.max_num_seqs + 4
        assert limits.num_states == limits.first_spare + limits.num_spares >= limits.first_spare + 2

    def beginning(self, batch, length, save):
        """Compute the beginning of the prompt in slot 0, and leave a snapshot of it. Other slots see the same
        pages of it."""
        batch.install(0, self.PROMPT)
        batch.step((0, 0, length, {}), saves={0: save})
        state, pages = batch.executor.state, length // batch.limits.block_size
        for slot in (1, 2):
            batch.install(slot, self.PROMPT)
            state.block_tables[:, slot, :pages] = state.block_tables[:, 0, :pages]

    def rest(self, batch, slot, start, *lengths, snapshot=None):
        """Hidden states of the rest of the prompt, computed in chunks of these lengths."""
        rows = []
        for length in lengths:
            kinds = dict.fromkeys(range(start, start + length), EMBED)
            begins = {} if snapshot is None or rows else {slot: snapshot}
            rows.append(batch.step((slot, start, length, kinds), begins=begins).hidden[:length].copy())
            start += length
        return np.concatenate(rows)

    def test_a_snapshot_goes_on_as_the_live_state_does(self, batch):
        """Twice, in other slots and chunks: reading it does not change it."""
        whole = batch.hidden(3, self.PROMPT[:16], 16), batch.hidden(3, self.PROMPT, 8, 8, 8, 8, 8)
        np.testing.assert_array_equal(whole[0], whole[1][:16])
        self.beginning(batch, 32, save=2)
        for slot, chunks in ((1, (8,)), (2, (1, 5, 2))):
            rest = self.rest(batch, slot, 32, *chunks, snapshot=2)
            np.testing.assert_array_equal(rest, whole[1][32:])
        np.testing.assert_array_equal(self.rest(batch, 0, 32, 3, 5), whole[1][32:])

    def test_states_are_read_and_written_beside_each_other(self, batch):
        """In one step: one sequence begins with a snapshot, one with nothing, one goes on and leaves another
        snapshot."""
        alone = batch.hidden(3, self.PROMPT, 8, 8, 8, 8, 8)
        self.beginning(batch, 16, save=1)
        batch.install(3, self.PROMPT)
        last = {1: (1, 16, 2, {17: EMBED}), 3: (3, 0, 3, {2: EMBED}), 0: (0, 16, 16, {31: EMBED})}
        hidden = batch.step(*last.values(), begins={1: 1}, saves={0: 3}).hidden
        np.testing.assert_array_equal(hidden[:3], alone[[17, 2, 31]])
        state = batch.executor.state
        state.block_tables[:, 2, :2] = state.block_tables[:, 0, :2]
        np.testing.assert_array_equal(self.rest(batch, 2, 32, 8, snapshot=3), alone[32:])
        np.testing.assert_array_equal(self.rest(batch, 1, 18, 9), alone[18:27])
