"""Log-probabilities of a prompt's tokens, in the form of vLLM's `prompt_logprobs`."""

from __future__ import annotations

from typing import Any

from firelane.gateway.requests.formats import TokenReport
from firelane.text.tokens.tokenizer import Tokenizer

PromptLogprobs = list[dict[str, dict[str, Any]] | None]


def prompt_logprobs(reports: list[TokenReport] | None, tokenizer: Tokenizer) -> PromptLogprobs | None:
    """One entry a token, by id: its own, then the alternatives; None for the first token, which follows
    nothing. A token that is not among the alternatives has no rank.
    """
    if reports is None:
        return None
    found: PromptLogprobs = []
    for report in reports:
        if report.logprob is None:
            found.append(None)
            continue
        ranks = {token: rank for rank, (token, _) in enumerate(report.top, 1)}
        entries = dict([(report.token, report.logprob), *report.top])
        found.append(
            {
                str(token): {
                    "logprob": logprob,
                    "rank": ranks.get(token),
                    "decoded_token": tokenizer.token_text(token),
                }
                for token, logprob in entries.items()
            }
        )
    return found
