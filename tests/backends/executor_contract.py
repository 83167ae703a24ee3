"""Every Executor must pass these tests, whatever it computes. A backend's test file makes a subclass with
`make_executor`:

class TestNull(ExecutorContract):
    def make_executor(self, **sizes): return NullExecutor(StepLimits(**LIMITS | sizes), 100)
"""

from __future__ import annotations

import numpy as np
import pytest

from firelane.contract import EMBED, NO_SNAPSHOT, SAMPLE, SCORE, ZERO_STATE, StepInputs
from tests.backends.draft_contract import DraftContract

LIMITS = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "max_output_rows": 16,
    "max_model_len": 64,
    "block_size": 16,
    "num_blocks": 32,
}


class Batch:
    """Builds StepInputs from chunks and rows, and owns the block tables of a few sequences."""

    def __init__(self, executor):
        self.executor = executor
        self.limits = executor.limits
        self.sets = [
            StepInputs.allocate(self.limits, executor.features_in) for _ in range(executor.max_in_flight + 1)
        ]
        self.free = list(range(self.limits.num_blocks))

    def install(self, slot, prompt, *, seed=0, temperature=1.0, logprobs=-1, stop_ids=(), min_tokens=0):
        """Unmasked; see `allow`."""
        state = self.executor.state
        blocks = self.limits.blocks_per_seq
        for table in state.block_tables:
            pages, self.free = self.free[:blocks], self.free[blocks:] + self.free[:blocks]
            table[slot, :blocks] = pages
        state.tokens[slot, : len(prompt)] = prompt
        state.stop_ids[slot, : len(stop_ids)] = stop_ids
        row = state.sampling[slot]
        row["temperature"], row["top_p"], row["min_p"], row["repetition_penalty"] = temperature, 1.0, 0.0, 1.0
        row["presence_penalty"] = row["frequency_penalty"] = 0.0
        row["top_k"], row["logprobs"], row["seed"], row["prompt_len"] = 0, logprobs, seed, len(prompt)
        row["stop_from"], row["num_stop_ids"], row["num_bias"] = len(prompt) + min_tokens, len(stop_ids), 0
        row["masked"] = 0

    def allow(self, slot, tokens):
        """Only these tokens may be drawn in this slot; the bits past the vocabulary are set, too."""
        vocab = self.executor.vocab_size
        bits = np.zeros(32 * (vocab // 32 + 1), np.uint8)
        bits[list(tokens)] = bits[vocab:] = 1
        self.executor.state.masks[slot] = np.packbits(bits, bitorder="little").view(np.uint32)
        self.executor.state.sampling[slot]["masked"] = 1

    def submit(self, *chunks, begins=None, saves=None, masks=None, drafts=None):
        """Each chunk: (slot, start, length, kinds of output rows by position). begins, saves: snapshots of
        recurrent state, by slot. masks: row_mask by slot and position. drafts: drafted tokens and the spare
        state, by slot."""
        first, drafts = self.limits.max_num_seqs, drafts or {}
        begins = {slot: first + snapshot for slot, snapshot in (begins or {}).items()}
        saves = {slot: first + snapshot for slot, snapshot in (saves or {}).items()}
        inputs = self.sets.pop(0)
        self.sets.append(inputs)
        inputs.num_chunks, inputs.num_tokens, inputs.num_rows = len(chunks), 0, 0
        for i, (slot, start, length, rows) in enumerate(chunks):
            inputs.chunk_slot[i], inputs.chunk_start[i], inputs.chunk_len[i] = slot, start, length
            inputs.chunk_from[i] = begins.get(slot, slot if start else ZERO_STATE)
            inputs.chunk_save[i] = saves.get(slot, NO_SNAPSHOT)
            inputs.chunk_drafted[i], spare = drafts.get(slot, (0, 0))
            inputs.chunk_spare[i] = self.limits.first_spare + spare
            for position, kind in rows.items():
                r = inputs.num_rows
                inputs.row_token[r] = inputs.num_tokens + position - start
                inputs.row_slot[r], inputs.row_position[r], inputs.row_kind[r] = slot, position, kind
                inputs.row_mask[r] = (masks or {}).get((slot, position), 0)
                inputs.num_rows += 1
            inputs.num_tokens += length
        self.executor.submit(inputs)

    def step(self, *chunks, **states):
        self.submit(*chunks, **states)
        return self.executor.wait()

    def generate(self, slot, prompt, count, **sampling):
        """Tokens of one sequence alone, as the outputs report them."""
        self.install(slot, prompt, **sampling)
        start, length, tokens = 0, len(prompt), []
        for _ in range(count):
            last = start + length - 1
            tokens.append(int(self.step((slot, start, length, {last: SAMPLE})).tokens[0]))
            start, length = last + 1, 1
        return tokens

    def hidden(self, slot, prompt, *chunks):
        """The hidden state at each position of `prompt`, run in `chunks`."""
        self.install(slot, prompt)
        start, rows = 0, []
        for length in chunks or [len(prompt)]:
            outputs = self.step((slot, start, length, dict.fromkeys(range(start, start + length), EMBED)))
            rows.append(outputs.hidden[:length].copy())
            start += length
        return np.concatenate(rows)


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


class ExecutorContract(DraftContract):
    releases = 20

    def make_executor(self, **sizes):
        raise NotImplementedError

    @pytest.fixture
    def executor(self):
        executor = self.make_executor()
        yield executor
        executor.release()

    @pytest.fixture
    def batch(self, executor):
        return Batch(executor)

    def test_describes_itself(self, executor):
        assert executor.vocab_size > 10
        assert executor.weights_bytes >= 0
        assert executor.kv_bytes >= 0
        assert executor.hidden_width > 0
        assert executor.max_in_flight >= 1
        assert executor.limits.max_output_rows >= executor.limits.max_num_seqs
        state, limits = executor.state, executor.limits
        assert state.tokens.shape == (limits.max_num_seqs, limits.max_model_len + 1)
        assert state.block_tables.shape == (len(limits.spans), limits.max_num_seqs, limits.blocks_per_seq)

    def test_tokens_are_in_the_vocabulary_and_written_in_place(self, executor, batch):
        tokens = batch.generate(2, PROMPT, 9)
        assert all(0 <= t < executor.vocab_size for t in tokens)
        assert executor.state.tokens[2, :17].tolist() == PROMPT + tokens

    def test_the_next_step_reads_the_token_that_the_host_has_not_seen(self, executor, batch):
        expected = batch.generate(0, PROMPT, 4)
        batch.install(1, PROMPT)
        executor.state.tokens[1, len(PROMPT) :] = 0
        batch.step((1, 0, 8, {7: SAMPLE}))
        for position in (8, 9, 10):
            batch.step((1, position, 1, {position: SAMPLE}))
        assert executor.state.tokens[1, 8:12].tolist() == expected

    def test_after_a_standby_tokens_are_the_same(self, executor, batch):
        if not executor.can_sleep:
            pytest.skip("this executor knows no standby")
        expected = batch.generate(0, PROMPT, 5, seed=7)
        for _ in range(2):
            executor.standby()
            executor.standby()
            executor.wake()
            executor.wake()
            assert batch.generate(0, PROMPT, 5, seed=7) == expected

    def test_same_seed_same_tokens_in_any_slot_and_chunking(self, batch):
        expected = batch.generate(0, PROMPT, 5, seed=7)
        assert batch.generate(3, PROMPT, 5, seed=7) == expected
        batch.install(1, PROMPT, seed=7)
        batch.step((1, 0, 3, {}))
        batch.step((1, 3, 4, {}))
        assert batch.step((1, 7, 1, {7: SAMPLE})).tokens[0] == expected[0]

    def test_company_changes_nothing(self, batch):
        prompts = [[5, 6, 7], PROMPT, [9], [8] * 11]
        alone = [batch.generate(slot, p, 3, seed=slot) for slot, p in enumerate(prompts)]
        for slot, prompt in enumerate(prompts):
            batch.install(slot, prompt, seed=slot)
        together = [[] for _ in prompts]
        chunks = [(slot, 0, len(p), {len(p) - 1: SAMPLE}) for slot, p in enumerate(prompts)]
        for _ in range(3):
            outputs = batch.step(*chunks)
            for slot in range(4):
                together[slot].append(int(outputs.tokens[slot]))
            chunks = [(slot, start + n, 1, {start + n: SAMPLE}) for slot, start, n, _ in chunks]
        assert together == alone

    def test_steps_submitted_ahead_are_answered_in_order(self, executor, batch):
        """Each reads the token that the step before it draws, which no wait() has shown yet."""
        depth = executor.max_in_flight
        expected = batch.generate(0, PROMPT, depth + 2)
        batch.install(1, PROMPT)
        executor.state.tokens[1, len(PROMPT) :] = 0
        batch.submit((1, 0, 8, {7: SAMPLE}))
        for position in range(8, 7 + depth):
            batch.submit((1, position, 1, {position: SAMPLE}))
        tokens = []
        for position in range(7 + depth, 9 + depth):
            tokens.append(int(executor.wait().tokens[0]))
            batch.submit((1, position, 1, {position: SAMPLE}))
        tokens += [int(executor.wait().tokens[0]) for _ in range(depth)]
        assert tokens == expected

    def test_outputs_stay_until_the_submit_after_the_next_wait(self, batch):
        batch.install(0, PROMPT, logprobs=3)
        first = batch.step((0, 0, 8, {7: SAMPLE}))
        kept = [
            a.copy()
            for a in (first.tokens[:1], first.logprobs[:1], first.top_ids[:1], first.top_logprobs[:1])
        ]
        batch.submit((0, 8, 1, {8: SAMPLE}))
        now = (first.tokens[:1], first.logprobs[:1], first.top_ids[:1], first.top_logprobs[:1])
        assert all((a == b).all() for a, b in zip(kept, now, strict=True))
        batch.executor.wait()
        assert all((a == b).all() for a, b in zip(kept, now, strict=True))

    def test_score_rows_report_the_token_that_is_there(self, executor, batch):
        batch.install(0, PROMPT, logprobs=5)
        outputs = batch.step((0, 0, 8, {p: SCORE for p in range(7)} | {7: SAMPLE}))
        assert outputs.tokens[:7].tolist() == PROMPT[1:]
        assert executor.state.tokens[0, :8].tolist() == PROMPT
        assert (outputs.logprobs[:8] <= 0).all()
        assert np.isfinite(outputs.logprobs[:8]).all()

    def test_hidden_states_are_of_the_tokens_up_to_their_position(self, executor, batch):
        whole = batch.hidden(0, PROMPT)
        assert whole.shape == (len(PROMPT), executor.hidden_width)
        assert whole.dtype == np.float32
        assert np.isfinite(whole).all()
        assert len(np.unique(whole, axis=0)) == len(PROMPT)
        assert (batch.hidden(0, [*PROMPT[:5], 0, 0, 0])[:5] == whole[:5]).all()
        assert (batch.hidden(0, [*PROMPT[:5], 0, 0, 0])[5:] != whole[5:]).any(axis=1).all()

    def test_embedding_draws_and_writes_nothing(self, executor, batch):
        before = executor.state.tokens[1].copy()
        before[: len(PROMPT)] = PROMPT
        batch.hidden(1, PROMPT)
        assert executor.state.tokens[1].tolist() == before.tolist()

    def test_hidden_states_are_the_same_in_any_chunking(self, batch):
        whole = batch.hidden(0, PROMPT)
        assert (batch.hidden(3, PROMPT, 1, 3, 4) == whole).all()
        assert (batch.hidden(2, PROMPT, *[1] * len(PROMPT)) == whole).all()

    def test_hidden_states_beside_rows_of_other_kinds(self, batch):
        whole, first = batch.hidden(0, PROMPT), batch.generate(2, [5, 6, 7], 1, seed=3)
        kinds = dict.fromkeys(range(7), SCORE)
        batch.install(1, PROMPT, logprobs=2)
        scores = batch.step((1, 0, 8, kinds)).logprobs[:7].copy()
        batch.install(2, [5, 6, 7], seed=3)
        for slot in (0, 1, 3):
            batch.install(slot, PROMPT, logprobs=2)
        mixed = {2: EMBED, 5: SCORE, 6: EMBED, 7: EMBED}
        outputs = batch.step(
            (3, 0, 8, mixed), (2, 0, 3, {2: SAMPLE}), (1, 0, 8, kinds), (0, 0, 1, {0: EMBED})
        )
        assert (outputs.hidden[[0, 2, 3, 12]] == whole[[2, 6, 7, 0]]).all()
        assert outputs.tokens[4] == first[0]
        assert (outputs.logprobs[5:12] == scores).all()
        assert outputs.logprobs[1] == scores[5]

    def test_hidden_states_at_the_last_position_of_the_context(self, executor, batch):
        length = executor.limits.max_model_len
        hidden = batch.hidden(0, [1] * length, *[16] * (length // 16))
        assert np.isfinite(hidden).all()

    def test_alternatives_are_sorted_and_distinct(self, executor, batch):
        batch.install(0, PROMPT, logprobs=5)
        outputs = batch.step((0, 0, 8, {6: SCORE, 7: SAMPLE}))
        for row in range(2):
            ids, values = outputs.top_ids[row, :5], outputs.top_logprobs[row, :5]
            assert len(set(ids.tolist())) == 5
            assert ((ids >= 0) & (ids < executor.vocab_size)).all()
            assert (np.diff(values) <= 0).all()
            assert (values <= 0).all()

    def test_stop_ids_are_not_drawn_too_early(self, batch):
        free = batch.generate(0, PROMPT, 6, seed=1)
        stops = sorted(set(free))
        held = batch.generate(0, PROMPT, 6, seed=1, stop_ids=stops, min_tokens=4)
        assert not set(held[:4]) & set(stops)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_masked_row_draws_what_is_allowed(self, executor, batch, temperature):
        last = executor.vocab_size - 1
        free = batch.generate(0, PROMPT, 1, temperature=temperature)[0]
        others = sorted({0, 5, 31, 32, last} - {free})
        for allowed in ([free, *others], others, [others[0]], [last - 1]):
            batch.install(0, PROMPT, temperature=temperature, logprobs=2)
            batch.allow(0, allowed)
            outputs = batch.step((0, 0, 8, {7: SAMPLE}))
            token = int(outputs.tokens[0])
            assert token == executor.state.tokens[0, 8]
            assert token in allowed
            if free in allowed and temperature == 0:
                assert token == free
            assert np.isfinite(outputs.logprobs[0])  # of the raw distribution

    def test_a_mask_is_its_slots_own(self, executor, batch):
        alone = batch.generate(0, PROMPT, 3)
        batch.install(0, PROMPT)
        batch.install(1, PROMPT)
        batch.allow(1, [executor.vocab_size - 1])
        outputs = batch.step((0, 0, 8, {7: SAMPLE}), (1, 0, 8, {7: SAMPLE}))
        assert outputs.tokens[:2].tolist() == [alone[0], executor.vocab_size - 1]
        batch.allow(1, [2])
        outputs = batch.step((0, 8, 1, {8: SAMPLE}), (1, 8, 1, {8: SAMPLE}))
        assert outputs.tokens[:2].tolist() == [alone[1], 2]

    def test_banned_stop_tokens_of_a_masked_row(self, batch):
        for allowed, expected in (([3, 4, 6], {6}), ([3, 4], {3, 4})):
            batch.install(0, PROMPT, stop_ids=(3, 4), min_tokens=9)
            batch.allow(0, allowed)
            assert int(batch.step((0, 0, 8, {7: SAMPLE})).tokens[0]) in expected

    def test_a_slot_can_be_used_again(self, batch):
        expected = batch.generate(1, PROMPT, 3, seed=2)
        batch.generate(1, [7] * 20, 3, seed=5, temperature=0.0)
        assert batch.generate(1, PROMPT, 3, seed=2) == expected

    def test_the_last_position_of_the_context(self, executor, batch):
        length = executor.limits.max_model_len
        batch.install(0, [1] * length)
        for start in range(0, length, 32):
            outputs = batch.step((0, start, 32, {start + 31: SAMPLE} if start + 32 == length else {}))
        assert executor.state.tokens[0, length] == outputs.tokens[0]

    def test_release_while_a_step_runs(self):
        for _ in range(self.releases):
            executor = self.make_executor()
            batch = Batch(executor)
            batch.install(0, PROMPT)
            batch.submit((0, 0, 8, {7: SAMPLE}))
            executor.release()

    def test_release_twice(self, executor):
        executor.release()
        executor.release()
