"""Answers that are held to something, behind reasoning that is on, while the engine is killed at random.

    python benchmarks/think_then_obey.py [--answers 10000] [--streams 16] [--kill-every 3] [--seed 1]

Five formats, each a server on a small model with random weights, which draws nearly evenly from what it may.
Requests ask in turns for JSON of a schema, a forced call, a regular expression, and two calls at most; they
are streamed, half of them with a budget of reasoning. An answer holds where its content or its calls are what
was asked for, and none of it is in the reasoning; an answer that ends with `length` does not. Prints a line
for each format, and ends with 1 where an answer does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import tokenizers
from random_model import mistral_config, write_checkpoint
from streams_back import engines

from firelane.bench.server import ServerProcess
from firelane.bench.table import format_table
from firelane.native.machine import cpu_identity
from firelane.sources.resolve import EMBEDDED

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "side": {"enum": ["left", "right"]},
    },
    "required": ["n", "side"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "turn", "parameters": SCHEMA, "strict": True}}
REGEX = "(yes|no)/[0-9]{2}"
ASKS: dict[str, dict[str, Any]] = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    "call": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    "regex": {"guided_regex": REGEX},
    "calls": {"tools": [TOOL], "tool_choice": "required"},
}
BUDGET = 40
MOST_TOKENS = 3000
SAMPLES = 3
"""Answers that do not hold, of which the text is shown."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """The way in which a model writes. tokens: its special tokens, the first of which ends its reasoning.
    opening: the template's words behind the assistant's mark. budget: whether reasoning is held to one."""

    name: str
    tool_parser: str
    reasoning_parser: str
    tokens: tuple[str, ...]
    opening: str = ""
    budget: bool = True


FORMATS = (
    Format(
        name="Qwen 3",
        tool_parser="hermes",
        reasoning_parser="think",
        tokens=("</think>", "<think>", "<tool_call>", "</tool_call>"),
    ),
    Format(
        name="DeepSeek V3.1",
        tool_parser="deepseek_v31",
        reasoning_parser="think",
        tokens=("</think>", "<think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        opening="<think>",
    ),
    Format(
        name="Seed-OSS",
        tool_parser="seed_oss",
        reasoning_parser="seed_oss",
        tokens=("</seed:think>", "<seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
        opening="<seed:think>",
    ),
    Format(
        name="Gemma 4",
        tool_parser="gemma4",
        reasoning_parser="gemma4",
        tokens=("<channel|>", "<|channel>", "<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    Format(
        name="gpt-oss",
        tool_parser="harmony",
        reasoning_parser="auto",
        tokens=(
            "<|end|>",
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|constrain|>",
            "<|call|>",
            "<|return|>",
        ),
        budget=False,
    ),
)


@dataclass
class Tally:
    """Counts of one format. thoughts: answers with reasoning; tokens: of all answers."""

    answers: int = 0
    hold: int = 0
    thoughts: int = 0
    tokens: int = 0
    kills: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])


def write_model(directory: Path, form: Format) -> Path:
    core = tokenizers.Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    core.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in form.tokens])
    config = mistral_config(layers=2, kv_heads=1, window=None, max_len=8192)
    write_checkpoint(directory, config | {"vocab_size": core.get_vocab_size()})
    core.save(str(directory / "tokenizer.json"))
    settings = json.loads((EMBEDDED / "tokenizer_config.json").read_text())
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>" + form.opening + "{% endif %}"
    )
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return directory


def bodies(
    form: Format, directory: Path, count: int, rng: random.Random
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kinds of answers, and requests for them."""
    end = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id(form.tokens[0])
    for number in range(count):
        kind = list(ASKS)[number % len(ASKS)]
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": f"Which way, {rng.randrange(10**6)}?"}],
            "max_tokens": MOST_TOKENS,
            "temperature": 1.5,
            "seed": rng.randrange(2**31),
            "stream": True,
            "stream_options": {"include_usage": True},
            "logit_bias": {str(end): 5},
            **ASKS[kind],
        }
        if form.budget and number // len(ASKS) % 2:
            body["thinking_token_budget"] = BUDGET
        yield kind, body


def holds(kind: str, content: str, calls: list[dict[str, str]]) -> bool:
    if "call" in kind:
        most = 1 if kind == "call" else 64
        return 1 <= len(calls) <= most and not content.strip() and all(is_call(call) for call in calls)
    if kind == "regex":
        return not calls and re.fullmatch(REGEX, content) is not None
    return not calls and is_object(content)


def is_call(call: dict[str, str]) -> bool:
    return call["name"] == "turn" and is_object(call["arguments"])


def is_object(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and list(found) == ["n", "side"]
        and isinstance(found["n"], int)
        and 0 <= found["n"] <= 99
        and found["side"] in ("left", "right")
    )


@dataclass
class Answer:
    """One answer, put together of its stream."""

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    tokens: int = 0
    calls: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def add(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.finish = str(event["error"])
        if event.get("usage"):
            self.tokens = event["usage"]["completion_tokens"]
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            self.content += delta.get("content") or ""
            self.reasoning += delta.get("reasoning_content") or ""
            self.finish = choice.get("finish_reason") or self.finish
            for call in delta.get("tool_calls") or ():
                if call["index"] == len(self.calls):
                    self.calls.append({"name": "", "arguments": ""})
                function = call.get("function", {})
                self.calls[-1]["name"] += function.get("name") or ""
                self.calls[-1]["arguments"] += function.get("arguments") or ""


async def ask(client: httpx.AsyncClient, kind: str, body: dict[str, Any], tally: Tally) -> None:
    answer = Answer()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            answer.finish = (await response.aread()).decode()
        else:
            rest = b""
            async for (
                data
            ) in response.aiter_bytes():  # aiter_lines ends lines at characters within a text, too
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        answer.add(json.loads(line[6:]))
    tally.answers += 1
    tally.tokens += answer.tokens
    tally.thoughts += bool(answer.reasoning)
    if answer.finish in ("stop", "tool_calls") and holds(kind, answer.content, answer.calls):
        tally.hold += 1
        tally.kinds[kind] += 1
    else:
        tally.wrong.append(f"{kind}: {answer}")


async def run(server: ServerProcess, form: Format, directory: Path, arguments: argparse.Namespace) -> Tally:
    tally, rng = Tally(), random.Random(arguments.seed)
    waiting = bodies(form, directory, arguments.answers // len(FORMATS), rng)
    limits = httpx.Limits(max_connections=arguments.streams)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as client:

        async def work() -> None:
            for kind, body in waiting:
                await ask(client, kind, body, tally)

        async def kill() -> None:
            while True:
                await asyncio.sleep(rng.uniform(0.3, 2 * arguments.kill_every))
                for pid in engines(server):
                    os.kill(pid, signal.SIGKILL)
                tally.kills += 1

        killer = asyncio.create_task(kill())
        await asyncio.gather(*(work() for _ in range(arguments.streams)))
        killer.cancel()
    return tally


def measure(form: Format, arguments: argparse.Namespace) -> Tally:
    with tempfile.TemporaryDirectory() as folder:
        directory = write_model(Path(folder), form)
        options = ["--tool-parser", form.tool_parser, "--reasoning-parser", form.reasoning_parser]
        with ServerProcess([str(directory), "--max-num-seqs", str(arguments.streams), *options]) as server:
            return asyncio.run(run(server, form, directory, arguments))


def kinds(tally: Tally) -> str:
    return " ".join(f"{kind} {count}" for kind, count in tally.kinds.items())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--kill-every", type=float, default=3.0, help="seconds, on average")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{cpu_identity().model}; {arguments.answers} answers, {arguments.streams} streams at a time")
    tallies = {form.name: measure(form, arguments) for form in FORMATS}
    rows = [
        [name, *map(str, (t.answers, t.hold, t.thoughts, t.tokens, t.kills)), kinds(t)]
        for name, t in tallies.items()
    ]
    head = ["format", "answers", "hold", "with reasoning", "tokens", "engine killed", "that hold, by kind"]
    print(format_table(head, rows))
    wrong = [text for tally in tallies.values() for text in tally.wrong]
    for text in wrong[:SAMPLES]:
        print(text[:1000])
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
