"""The OpenAI client against a server that computes: completions, chat, streams, errors."""

from __future__ import annotations

from collections.abc import Callable

import openai
import pytest
from e2e_support import MODEL, metric, wait_until

from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
PROMPT = "def read_lines(path):\n    "


def test_completion_streams_the_same_text(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0)
    stream = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    events = list(stream)
    assert "".join(e.choices[0].text for e in events if e.choices) == whole.choices[0].text
    assert len(whole.choices[0].text) > 10
    assert whole.usage is not None
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_same_seed_same_text(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)

    def draw(seed: int) -> str:
        made = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=16, temperature=1.0, seed=seed
        )
        return made.choices[0].text

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_second_request_hits_the_prefix_cache(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    prompt = "import os\nimport sys\n" * 20

    def cached() -> int:
        usage = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    assert cached() == 0
    assert cached() > 16


def test_chat(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=8, n=2, seed=7, logprobs=True, top_logprobs=2
    )
    assert [c.index for c in answer.choices] == [0, 1]
    assert all(c.message.role == "assistant" for c in answer.choices)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    assert len(logprobs.content[0].top_logprobs) == 2


def test_many_at_once_match_one_at_a_time(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    prompts = [f"def function_{i}(value):\n" for i in range(6)]
    together = client.completions.create(model=MODEL, prompt=prompts, max_tokens=12, temperature=0)
    alone = [client.completions.create(model=MODEL, prompt=p, max_tokens=12, temperature=0) for p in prompts]
    assert [c.text for c in together.choices] == [a.choices[0].text for a in alone]


def test_errors_have_their_status(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="x")
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model=MODEL, prompt="x " * 5000)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=MODEL, prompt="x", temperature=-1)


def test_client_that_goes_away_frees_its_sequence(cpu_server: ServerProcess, connect: Connect) -> None:
    client = connect(cpu_server)
    before = metric(cpu_server.url, "vllm:generation_tokens_total")
    stream = client.completions.create(
        model=MODEL, prompt="x", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    # The gauge is as of the last step: another request brings it up to date.
    wait_until(lambda: _running_after_a_request(client, cpu_server) == 0)
    assert metric(cpu_server.url, "vllm:generation_tokens_total") - before < 1900


def _running_after_a_request(client: openai.OpenAI, server: ServerProcess) -> float:
    client.completions.create(model=MODEL, prompt="x", max_tokens=1)
    return metric(server.url, "vllm:num_requests_running")


def test_the_list_of_models_has_ours(null_server: ServerProcess, connect: Connect) -> None:
    assert [m.id for m in connect(null_server).models.list()] == [MODEL]
