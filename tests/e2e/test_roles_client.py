"""Prefill and decode on engines of their own, under a real `openai` client: it gets what one engine would
have given, whichever of them is killed or stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from e2e_support import MODEL, metric, wait_until

from firelane.bench.server import ServerProcess

PROMPT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n" * 12
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
BODY: dict[str, Any] = {
    "model": MODEL,
    "prompt": PROMPT,
    "max_tokens": 40,
    "extra_body": {"ignore_eos": True},
}
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": PROMPT}],
    "max_tokens": 60,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "report", "schema": SCHEMA, "strict": True},
    },
}
TOOLS: dict[str, Any] = {
    "model": MODEL,
    "messages": CHAT["messages"],
    "max_tokens": 80,
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
REQUESTS: dict[str, Callable[[openai.OpenAI], Any]] = {
    "greedy": lambda client: whole(client, temperature=0),
    "seeded": lambda client: whole(client, seed=5, top_p=0.9),
    "logprobs": lambda client: whole(client, seed=7, logprobs=2),
    "penalties": lambda client: whole(client, seed=8, frequency_penalty=0.5, presence_penalty=0.3),
    "two answers": lambda client: whole(client, seed=6, n=2),
    "grammar": lambda client: client.chat.completions.create(**CHAT, seed=9).choices[0].message.content,
    "tools": lambda client: calls(client.chat.completions.create(**TOOLS, seed=10)),
}


def calls(answer: Any) -> Any:
    """Names and arguments, and how the answer ended."""
    (choice,) = answer.choices
    made = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    assert made
    return made, choice.finish_reason, answer.usage.completion_tokens


def whole(client: openai.OpenAI, **fields: Any) -> Any:
    """Choices and usage of an answer, and the same streamed."""
    answer = client.completions.create(**BODY, **fields)
    parts: dict[int, list[str]] = {}
    usage = None
    for chunk in client.completions.create(
        **BODY, **fields, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts.setdefault(choice.index, []).append(choice.text)
    texts = ["".join(parts[index]) for index in sorted(parts)]
    assert texts == [choice.text for choice in answer.choices]
    assert usage is not None
    assert usage.completion_tokens == answer.usage.completion_tokens
    told = usage.model_dump()
    for name in ("accepted_prediction_tokens", "rejected_prediction_tokens"):
        del told["completion_tokens_details"][name]  # drafts follow the times of steps
    return [(choice.text, choice.logprobs) for choice in answer.choices], told


@pytest.fixture(scope="module")
def expected(cpu_server: ServerProcess) -> dict[str, Any]:
    """The answers of one engine that does all, asked in the same order."""
    with client_of(cpu_server) as client:
        return {name: ask(client) for name, ask in REQUESTS.items()}


@pytest.fixture(scope="module")
def server(environ: dict[str, str]) -> Iterator[ServerProcess]:
    with ServerProcess(["--prefill", "1", "--decode", "1"], environ=environ) as started:
        all_up(started)
        yield started


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def count(server: ServerProcess, name: str) -> float:
    return metric(server.url, f"firelane:{name}_total")


def all_up(server: ServerProcess) -> None:
    """Both engines serve, and pages come from the first to the second."""
    number = iter(range(1000))

    def hands_over() -> bool:
        before = count(server, "kv_pulls_ok")
        with client_of(server) as client:
            client.completions.create(model=MODEL, prompt=f"# {next(number)}\n{PROMPT}", max_tokens=2)
        return count(server, "kv_pulls_ok") > before

    wait_until(hands_over)


def test_every_kind_of_request_gives_the_same(server: ServerProcess, expected: dict[str, Any]) -> None:
    before = count(server, "handed_over")
    with client_of(server) as client:
        for name, ask in REQUESTS.items():
            assert ask(client) == expected[name], name
    assert count(server, "handed_over") == before + 14  # each twice, of two answers four, the last two once


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_streams_go_on_without_an_engine(
    server: ServerProcess, expected: dict[str, Any], role: str, signal_: signal.Signals
) -> None:
    deaths = count(server, "engine_deaths")
    with client_of(server) as client:
        stream = client.completions.create(**BODY, seed=5, top_p=0.9, stream=True)
        text = next(iter(stream)).choices[0].text
        os.kill(engine(server, role), signal_)
        text += "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
        assert text == expected["seeded"][0][0][0]
        assert REQUESTS["greedy"](client)[0] == expected["greedy"][0]
    wait_until(lambda: count(server, "engine_deaths") > deaths)
    all_up(server)


def test_streams_go_on_while_engines_change_places(server: ServerProcess, expected: dict[str, Any]) -> None:
    handed_over = count(server, "handed_over")
    with client_of(server) as client, httpx.Client(base_url=server.url, timeout=60) as http:
        found = {one["role"]: one["name"] for one in http.get("/admin/engines").json()["engines"]}
        stream = client.completions.create(**BODY, seed=5, top_p=0.9, stream=True)
        text = next(iter(stream)).choices[0].text
        for before, after in (("decode", "prefill"), ("prefill", "decode")):
            answer = http.post("/admin/engines/role", json={"engine": found[before], "role": after})
            assert answer.status_code == 200, answer.text
        text += "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
        assert text == expected["seeded"][0][0][0]
        assert REQUESTS["greedy"](client)[0] == expected["greedy"][0]
        now = {one["role"]: one["name"] for one in http.get("/admin/engines").json()["engines"]}
        assert (now["prefill"], now["decode"]) == (found["decode"], found["prefill"])
    assert count(server, "handed_over") >= handed_over + 3


def engine(server: ServerProcess, role: str) -> int:
    """The process of this role."""
    wanted = f"role={role}".encode()
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in server.engine_pids}
    found = [pid for pid, line in lines.items() if wanted in line]
    assert found, server.log
    return found[0]
