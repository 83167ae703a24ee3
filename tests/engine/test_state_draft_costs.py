"""Drafts of a model with recurrent state: their price has the rows of what is computed once more."""

from __future__ import annotations

import msgspec
import pytest

from firelane.engine.speculation.proposer import Proposal
from tests.engine.chain_model import VOCAB

TOKENS, SEED = 1200, 7
SIZES = {
    "max_model_len": TOKENS + 8,
    "num_blocks": 100,
    "block_size": 16,
    "max_output_rows": 40,
    "max_num_batched_tokens": 40,
    "num_spares": 2,
    "state_bytes": 64,
}


class FirstRight:
    """Drafts the answer that is known, whose tokens are wrong from the `right`-th on."""

    def __init__(self, answer, prompt_len, right):
        self.answer, self.prompt_len, self.right = answer, prompt_len, right

    def propose(self, asked):
        return [Proposal(self._drafted(len(one.tokens) - self.prompt_len, one.most), 1.0) for one in asked]

    def _drafted(self, at, most):
        run = self.answer[at : at + most]
        return [(token + (i >= self.right)) % VOCAB for i, token in enumerate(run)]

    def forget(self, tenant):
        pass


def seconds(driver, request, proposer, row_s):
    """Seconds of the request without drafts and then with them, where a step takes 10 ms, and longer by row_s
    of that with each further token."""
    d, now = driver(proposer=proposer, **SIZES), [0.0]
    wait = d.executor.wait

    def timed():
        now[0] += 0.01 * (1 + row_s * (d.executor.pending.num_tokens - 1))
        return wait()

    d.executor.wait, d.core._clock = timed, lambda: now[0]
    d.submit(msgspec.structs.replace(request, id=0, most_drafted=0))
    d.run(max_steps=2 * TOKENS)
    plain_s = now[0]
    d.submit(request)
    d.run(max_steps=2 * TOKENS)
    return plain_s, now[0] - plain_s, d


@pytest.fixture(scope="module")
def known(request_of, alone):
    request = request_of(1, [1, 2, 3], max_tokens=TOKENS, seed=SEED)
    return request, alone(request, TOKENS + 8, has_state=True)[0]


@pytest.mark.parametrize("row_s", [0.05, 0.3, 0.7])
@pytest.mark.parametrize("right", [0, 1, 2, 5])
def test_drafts_that_fail_cost_one_percent_at_most(driver, known, right, row_s):
    request, answer = known
    plain_s, drafted_s, d = seconds(driver, request, FirstRight(answer, 3, right), row_s)
    assert d.tokens[1] == answer
    assert drafted_s <= 1.01 * plain_s
    if right > 1 and row_s < 0.1:
        assert drafted_s < 0.8 * plain_s
