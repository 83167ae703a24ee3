"""The OpenAI client with a server that drafts tokens: what is asked with drafts is what is said without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from e2e_support import MODEL, metric

from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
MESSAGES: Any = [{"role": "user", "content": "Write a class with push, pop, push, pop, push and pop."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "push",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
            "required": ["item", "count"],
            "additionalProperties": False,
        },
    },
}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 4, "n": 3},
    "logprobs": {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    "stop string": {"temperature": 0, "stop": ["retu"]},
    "call": {"temperature": 0, "tools": [TOOL], "tool_choice": "required"},
    "schema": {"temperature": 0, "extra_body": {"guided_json": TOOL["function"]["parameters"]}},
}
TRIES = 400
"""Most requests until one is drafted. A busy machine makes rows look dear, and drafts that failed are
paid from a small share of later steps."""


def ask(client: openai.OpenAI, stream: bool, *, speculative: bool, **fields: Any) -> tuple[Any, Any, int]:
    """All that is said, by choice, the usage, and the number of chunks."""
    body = {**fields.pop("extra_body", {}), "speculative": speculative}
    made = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=70,
        stream=stream,
        stream_options={"include_usage": True} if stream else openai.omit,
        extra_body=body,
        **fields,
    )
    chunks: list[Any] = list(made) if stream else [made]
    said: dict[int, list[Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        text, arguments, logprobs, _ = said.setdefault(choice.index, ["", "", [], None])
        piece = choice.delta if stream else choice.message
        text += piece.content or ""
        for call in piece.tool_calls or ():
            arguments += (call.function.name or "") + (call.function.arguments or "")
        logprobs += (choice.logprobs.content if choice.logprobs is not None else None) or []
        said[choice.index] = [text, arguments, logprobs, choice.finish_reason]
    return said, chunks[-1].usage, len(chunks)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_drafts_change_nothing_that_is_said(
    cpu_server: ServerProcess, connect: Connect, case: str, stream: bool
) -> None:
    client, fields = connect(cpu_server), CASES[case]
    expected, usage, chunks = ask(client, stream, speculative=False, **fields)
    assert usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert all(text or arguments for text, arguments, _, _ in expected.values())
    for _ in range(3):
        said, usage_of_drafts, fewer = ask(client, stream, speculative=True, **fields)
        assert said == expected
        assert usage_of_drafts.completion_tokens == usage.completion_tokens
        assert usage_of_drafts.completion_tokens_details.reasoning_tokens == 0
        assert fewer <= chunks


def test_a_predicted_answer_is_drafted(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    plain, usage, chunks = ask(client, True, speculative=False, temperature=0)
    (text, *_) = plain[0]
    before = metric(cpu_server.url, "vllm:spec_decode_num_accepted_tokens_total")
    for _ in range(TRIES):
        prediction = {"type": "content", "content": [{"type": "text", "text": text}]}
        said, drafted, fewer = ask(client, True, speculative=True, temperature=0, prediction=prediction)
        assert said == plain
        details = drafted.completion_tokens_details
        if details.accepted_prediction_tokens > usage.completion_tokens // 2:
            break
    assert details.accepted_prediction_tokens > usage.completion_tokens // 2
    assert fewer < chunks - details.accepted_prediction_tokens // 2
    assert metric(cpu_server.url, "vllm:spec_decode_num_accepted_tokens_total") > before
    positions = metric(cpu_server.url, "vllm:spec_decode_num_accepted_tokens_per_pos_total")
    assert positions >= details.accepted_prediction_tokens
