"""Requests of many kinds, whose answers are the same whatever becomes of the engines meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import openai
from e2e_support import MODEL, metric, wait_until

from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
CHAT: list[Any] = [{"role": "user", "content": "def weather(city):"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
LONG: dict[str, Any] = {"model": MODEL, "max_tokens": 400, "extra_body": {"ignore_eos": True}}
COMPLETION = {**LONG, "prompt": "import os\n\ndef walk(path):"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "report", "schema": SCHEMA, "strict": True}}


def stream(client: openai.OpenAI, **body: Any) -> Any:
    """Text, tokens with log-probabilities, and the end, by choice. How many tokens come in one event depends
    on how many one step has verified: it is no part of the answer."""
    texts: dict[int, str] = {}
    drawn: dict[int, list[Any]] = {}
    ends: dict[int, str | None] = {}
    for chunk in client.completions.create(stream=True, **body):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            ends[choice.index] = choice.finish_reason
            if choice.logprobs is not None:
                tokens, values = choice.logprobs.tokens, choice.logprobs.token_logprobs
                drawn.setdefault(choice.index, []).extend(zip(tokens, values, strict=True))
    return texts, drawn, ends


def chat(client: openai.OpenAI, **body: Any) -> Any:
    answer = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=300, **body).choices[0]
    calls = [(c.function.name, c.function.arguments) for c in answer.message.tool_calls or []]
    return answer.message.content, calls, answer.finish_reason


REQUESTS: dict[str, Callable[[openai.OpenAI], Any]] = {
    "greedy": lambda client: stream(client, **COMPLETION, temperature=0),
    "seeded": lambda client: stream(client, **COMPLETION, seed=5),
    "two answers": lambda client: stream(client, **COMPLETION, seed=6, n=2),
    "logprobs": lambda client: stream(client, **COMPLETION, seed=7, logprobs=2),
    "penalties": lambda client: stream(client, **COMPLETION, seed=8, frequency_penalty=0.5),
    "stop string": lambda client: stream(client, **COMPLETION, seed=9, stop=["never to be seen", "zzzz"]),
    "whole": lambda client: client.completions.create(**COMPLETION, seed=10).choices[0].text,
    "schema": lambda client: chat(client, seed=11, response_format=FORMAT),
    "tool": lambda client: chat(client, seed=12, tools=[TOOL], tool_choice="required"),
    "embeddings": lambda client: [
        item.embedding
        for item in client.embeddings.create(model=MODEL, input=[[i] * 900 for i in range(60, 66)]).data
    ],
    "response": lambda client: (
        client.responses.create(
            model=MODEL, input="def main():", temperature=0, max_output_tokens=300, store=False
        ).output_text
    ),
}


UNDISTURBED: dict[str, Any] = {}
"""The answers of the first server that was asked: the number of engines, and their places, make no
difference."""
ALL = tuple(REQUESTS)


def undisturbed(client: openai.OpenAI, names: Sequence[str] = ALL) -> dict[str, Any]:
    for name in names:
        if name not in UNDISTURBED:
            UNDISTURBED[name] = REQUESTS[name](client)
    return {name: UNDISTURBED[name] for name in names}


def under_load(
    server: ServerProcess, connect: Connect, disturb: Callable[[], None], names: Sequence[str] = ALL
) -> dict[str, Any]:
    """The answers to these of REQUESTS, at the same time, while something is done to the engines."""
    client, generated = connect(server), metric(server.url, "vllm:generation_tokens_total")
    with ThreadPoolExecutor(len(names)) as pool:
        answers: dict[str, Future[Any]] = {name: pool.submit(REQUESTS[name], client) for name in names}
        wait_until(lambda: metric(server.url, "vllm:generation_tokens_total") > generated + 50)
        disturb()
        return {name: answer.result() for name, answer in answers.items()}
