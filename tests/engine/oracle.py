"""A proposer that knows the chain model."""

from __future__ import annotations

from firelane.engine.speculation.proposer import Proposal
from tests.engine.chain_model import VOCAB, History, draw


class Oracle:
    """Drafts what the model will draw, but for the tokens that `errors` tells to be wrong; confident."""

    def __init__(self, seed, spans, errors, has_state=False):
        self.seed, self.spans, self.errors, self.has_state = seed, spans, errors, has_state

    def propose(self, asked):
        return [Proposal(self._drafted(one.tokens, one.most), 1.0) for one in asked]

    def _drafted(self, tokens, most):
        history, drafted = History(self.spans, self.has_state), []
        for token in tokens.tolist():
            history.add(token)
        while len(drafted) < most:
            token = draw(history.value(), self.seed)
            if next(self.errors, False):
                token = (token + 1) % VOCAB
            drafted.append(token)
            history.add(token)
        return drafted

    def forget(self, tenant):
        pass


class Recall:
    """Drafts from answers to known prompts, but for every fourth token, which is wrong."""

    def __init__(self, answers):
        """answers: tokens by the prompt's bytes."""
        self.answers, self.drafted = answers, 0

    def propose(self, asked):
        return [Proposal(self._drafted(one), 1.0) for one in asked]

    def _drafted(self, asked):
        start = asked.sequence.prompt_len
        known = self.answers[asked.tokens[:start].tobytes()]
        at = len(asked.tokens) - start
        run = [token ^ (i % 4 == 3) for i, token in enumerate(known[at : at + asked.most], at)]
        self.drafted += len(run)
        return run

    def forget(self, tenant):
        pass
