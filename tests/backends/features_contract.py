"""Every executor of a model passes these tests of features: what a program tells and reads by token row. The
test file of a backend makes a subclass with `drive`, whose machine has slots 0 to 3 ready to decode."""

from __future__ import annotations

import numpy as np
import pytest

from firelane.contract import EMBED, SAMPLE
from firelane.program.reference_step import rounded
from firelane.program.values import DType
from tests.backends.cpu_harness import Chunk
from tests.models.features import HIDDEN, READ, TOLD, features_program, plain_program

SEQUENCE = 23
GIVEN = np.random.default_rng(6).standard_normal((SEQUENCE, READ)).astype(np.float32)


class FeaturesContract:
    dtype = DType.BF16

    def drive(self, program):
        raise NotImplementedError

    @pytest.fixture
    def driven(self):
        m = self.drive(features_program(self.dtype))
        yield m
        m.executor.release()

    def test_hidden_states_are_told_of_every_token_row(self, driven):
        """Output rows, which the head reads, have the same bits."""
        assert (driven.executor.features_in, driven.executor.features_out) == (READ, TOLD)
        for chunks in ([Chunk(1, 0, 7, score=True)], [Chunk(1, 7, 1), Chunk(0, 0, 5, score=True)]):
            inputs = driven.fill(chunks)
            inputs.row_kind[: inputs.num_rows] = EMBED
            driven.executor.submit(inputs)
            outputs = driven.executor.wait()
            found = outputs.features[inputs.row_token[: inputs.num_rows], HIDDEN:]
            np.testing.assert_array_equal(found, outputs.hidden[: inputs.num_rows])
            assert np.abs(found).max() > 0.1

    def test_rows_do_not_depend_on_company_or_chunks(self, driven):
        alone = told(driven, [[Chunk(1, 0, SEQUENCE, score=True)]])
        assert len({row.tobytes() for row in alone}) == SEQUENCE
        first = [Chunk(0, 0, 9), Chunk(1, 0, 11, sample=False)]
        last = [Chunk(0, 9, 1), Chunk(2, 0, 3)]
        np.testing.assert_array_equal(told(driven, [first, [Chunk(1, 11, 12, score=True), *last]]), alone)
        one_by_one = [[Chunk(1, p, 1, score=True)] for p in (20, 21, 22)]
        beside = [Chunk(3, 0, 1), Chunk(1, 0, 20, score=True)]
        np.testing.assert_array_equal(told(driven, [beside, *one_by_one]), alone)

    def test_rows_of_a_draft_are_told_with_the_others(self, driven):
        """Several rows of a chunk are drawn, and each row follows from the tokens that stood there."""
        alone = told(driven, [[Chunk(1, 0, SEQUENCE, score=True)]])
        told(driven, [[Chunk(1, 0, 18, sample=False)]])
        inputs = driven.fill([Chunk(0, 0, 2), Chunk(1, 18, 5, score=True)])
        inputs.row_kind[: inputs.num_rows] = SAMPLE
        inputs.features[2:7] = GIVEN[18:]
        driven.executor.submit(inputs)
        np.testing.assert_array_equal(driven.executor.wait().features[2:7], alone[18:])

    def test_features_stay_until_the_submit_after_the_next_wait(self, driven):
        outputs = driven.step([Chunk(1, 0, 9, score=True)])
        kept = outputs.features[:9].copy()
        driven.executor.submit(driven.fill([Chunk(0, 0, 12)]))
        np.testing.assert_array_equal(outputs.features[:9], kept)
        driven.executor.wait()
        np.testing.assert_array_equal(outputs.features[:9], kept)

    def test_features_that_are_read_are_those_of_the_row(self, driven):
        rng = np.random.default_rng(5)
        for chunks in (
            [Chunk(1, 0, 19), Chunk(0, 0, 2)],
            [Chunk(0, 2, 1)],
            [Chunk(1, 19, 4), Chunk(2, 0, 9)],
        ):
            given = rng.standard_normal(driven.inputs.features.shape).astype(np.float32)
            driven.inputs.features[:] = given
            found, rows = driven.step(chunks).features, driven.inputs.num_tokens
            np.testing.assert_array_equal(found[:rows, :READ], rounded(given[:rows], self.dtype))
            assert np.isfinite(found[:rows]).all()

    def test_what_is_computed_follows_from_the_features(self, driven):
        """Bf16 values that were told come back as they were."""
        whole = [[Chunk(1, 0, SEQUENCE, score=True)]]
        once = told(driven, whole)
        parts = [[Chunk(1, 0, 4, sample=False)], [Chunk(0, 0, 3), Chunk(1, 4, 19, score=True)]]
        np.testing.assert_array_equal(told(driven, parts, once[:, :READ]), once)
        other = told(driven, whole, -GIVEN)
        assert (other[:, READ:] != once[:, READ:]).any(axis=1).all()

    def test_a_program_without_features_has_no_memory_of_them(self):
        m = self.drive(plain_program(self.dtype))
        assert (m.executor.features_in, m.executor.features_out) == (0, 0)
        assert m.step([Chunk(0, 0, 5)]).features.shape == (m.executor.limits.max_num_batched_tokens, 0)
        m.executor.release()


def told(m, schedule, given=GIVEN):
    """Features of the tokens of slot 1, which run in these steps and get the features `given`; those of
    others get NaN."""
    found = []
    for chunks in schedule:
        first, mine = 0, slice(0)
        m.inputs.features[:] = np.nan
        for chunk in chunks:
            if chunk.slot == 1:
                mine = slice(first, first + chunk.length)
                m.inputs.features[mine] = given[chunk.start : chunk.start + chunk.length]
            first += chunk.length
        found.append(m.step(chunks).features[mine].copy())
    return np.concatenate(found)
