"""The drawing of a request's tokens, and the grammar that they must match: parts of a NewRequest."""

from __future__ import annotations

from typing import Literal

import msgspec

GrammarKind = Literal["json_schema", "regex", "lark", "gbnf", "structural_tag"]
WITH_SCHEMAS = frozenset[GrammarKind]({"json_schema", "structural_tag"})
"""Kinds whose text may be as long as a schema."""


class Sampling(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The drawing of one request's tokens. Defaults mean: plain sampling from the model's distribution.

    temperature 0 is greedy; top_k 0, top_p 1.0 and min_p 0.0 are off. seed keys the counter-based generator
    together with the position, so that the same request gives the same tokens anywhere. logprobs: how many
    alternatives to report for each generated token (-1 = none, 0 = only the chosen token); prompt_logprobs
    the same for the prompt's tokens. Until min_tokens are generated, stop_token_ids cannot be drawn.
    logprob_token_ids: report these tokens, in this order, in place of the best alternatives of each generated
    token; logprobs is 0 then, and prompt_logprobs -1.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: list[tuple[int, float]] = []
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    logprobs: int = -1
    prompt_logprobs: int = -1
    logprob_token_ids: list[int] = []


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """A grammar that the output's text must match from its first to its last character. text: a JSON schema
    (as JSON), a regular expression, a grammar in Lark's syntax, or one in llama.cpp's GBNF. before: rules of
    llguidance's Lark, of which `before` is what stands before that text, such as reasoning; "" for nothing.
    """

    kind: GrammarKind
    text: str
    before: str = ""
