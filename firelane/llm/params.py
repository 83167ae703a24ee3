"""Sampling parameters of the offline API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from firelane.errors import UsageError
from firelane.wire.sampling import Grammar, GrammarKind

REST_OF_CONTEXT = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters: how to draw tokens, when to stop, what to report.

    n: outputs per prompt. temperature 0 is greedy; top_k 0 or -1, top_p 1 and min_p 0 are off. seed None
    draws a new one for each output; output i of a prompt uses seed + i. max_tokens None: the rest of the
    context. stop: texts that end the output and are not part of it. logprobs, prompt_logprobs: how many
    alternatives to report, None for none. json_schema, regex, grammar (in Lark's syntax; one of them at
    most): what the whole text must match. speculative: whether tokens may be drafted, which changes none.
    lora: the name of one of the LLM's `loras`; "": the model alone.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict[int, float])
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    speculative: bool = True
    lora: str = ""

    @property
    def reports(self) -> tuple[int, int]:
        """Logprobs of output and prompt, as in Sampling."""
        output, prompt = self.logprobs, self.prompt_logprobs
        return -1 if output is None else output, -1 if prompt is None else prompt

    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


def wire_grammar(params: SamplingParams) -> Grammar | None:
    """Raises UsageError where more than one is given."""
    schema = params.json_schema
    text = schema if isinstance(schema, str) or schema is None else json.dumps(schema)
    given: list[tuple[GrammarKind, str | None]] = [
        ("json_schema", text),
        ("regex", params.regex),
        ("lark", params.grammar),
    ]
    found = [Grammar(kind, text) for kind, text in given if text is not None]
    if len(found) > 1:
        raise UsageError(f"{found[0].kind} and {found[1].kind} are both given: leave out one of them")
    return found[0] if found else None
