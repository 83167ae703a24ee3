"""The part of the executor contract that verifies drafts: several SAMPLE rows in the chunk of a slot."""

import pytest

from firelane.contract import SAMPLE

PROMPT = [2, 7, 1, 8, 2, 8, 1, 8]


class DraftContract:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("right", [0, 1, 3, 4])
    def test_a_draft_is_drawn_up_to_its_first_wrong_token(self, executor, batch, temperature, right):
        alone = batch.generate(0, PROMPT, 5, seed=3, temperature=temperature)
        wrong = [(token + 1) % executor.vocab_size for token in alone]
        batch.install(0, PROMPT, seed=3, temperature=temperature)
        assert batch.step((0, 0, 8, {7: SAMPLE})).tokens[0] == alone[0]
        drafted = [*alone[: 1 + right], *wrong[1 + right :]][:5]
        executor.state.tokens[0, 8:13] = drafted
        drawn = batch.step((0, 8, 5, dict.fromkeys(range(8, 13), SAMPLE))).tokens[:5].tolist()
        expected = [*alone[1:], *batch.generate(1, [*PROMPT, *alone], 1, seed=3, temperature=temperature)]
        assert drawn[: right + 1] == expected[: right + 1]
        assert executor.state.tokens[0, 9 : 10 + right].tolist() == drawn[: right + 1]

    def test_a_sequence_goes_on_behind_a_rejected_draft(self, executor, batch):
        alone = batch.generate(0, PROMPT, 4, seed=5)
        batch.install(0, PROMPT, seed=5)
        batch.step((0, 0, 8, {7: SAMPLE}))
        executor.state.tokens[0, 9:12] = [(alone[1] + 1) % executor.vocab_size, 0, 1]
        drawn = batch.step((0, 8, 4, dict.fromkeys(range(8, 12), SAMPLE))).tokens[0]
        rest = [int(batch.step((0, at, 1, {at: SAMPLE})).tokens[0]) for at in (9, 10)]
        assert [int(drawn), *rest] == alone[1:]

    def test_rows_behind_drafted_tokens_have_masks_of_their_own(self, executor, batch):
        batch.install(0, PROMPT, seed=1)
        batch.install(1, PROMPT, seed=1)
        batch.allow(0, [4])
        batch.allow(1, [6])
        masks, slots = executor.state.masks, executor.limits.max_num_seqs
        for row, token in ((slots, 9), (slots + 2, 11)):
            masks[row] = 0
            masks[row, token // 32] = 1 << token % 32
        executor.state.tokens[0, 8:10] = 4, 9
        rows = dict.fromkeys((7, 8, 9), SAMPLE)
        outputs = batch.step((0, 0, 10, rows), (1, 0, 8, {7: SAMPLE}), masks={(0, 8): 1, (0, 9): 3})
        assert outputs.tokens[:4].tolist() == [4, 9, 11, 6]
