"""A budget of reasoning, kept by a real server of a toy model that thinks until it is stopped."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from firelane.bench.server import ServerProcess
from tests.models.families import make_checkpoint

TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}<think>\n"
CLOSE = 260
"""Id of </think>."""
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
Connect = Callable[[ServerProcess], openai.OpenAI]


def thinking_model(path: Path) -> Path:
    """A toy whose last two special tokens are the marks of reasoning."""
    make_checkpoint("llama3", "float32", path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (path / name).read_text()
        text = text.replace("<|im_start|>", "<think>").replace("<|im_end|>", "</think>")
        (path / name).write_text(text)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="module")
def server(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = thinking_model(tmp_path_factory.mktemp("models") / "thinker")
    with ServerProcess([str(model), "--max-num-seqs", "4"], environ=environ) as started:
        yield started


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    """The first choice of an answer, with its token ids."""
    body = {"ignore_eos": True, "return_token_ids": True, **fields}
    answer = client.chat.completions.create(
        model="thinker", messages=[{"role": "user", "content": "hi"}], max_tokens=40, seed=3, extra_body=body
    )
    return answer.choices[0]


def test_without_a_budget_it_thinks_to_the_end(server: ServerProcess, connect: Connect) -> None:
    choice = ask(connect(server))
    assert CLOSE not in choice.token_ids
    assert not choice.message.content


BUDGETS = [
    ({"reasoning": {"max_tokens": 0}}, 0),
    ({"reasoning": {"max_tokens": 5}}, 5),
    ({"thinking_token_budget": 5}, 5),
    ({"thinking": {"type": "enabled", "budget_tokens": 17}}, 17),
]


@pytest.mark.parametrize(("fields", "budget"), BUDGETS, ids=str)
def test_reasoning_ends_where_its_budget_does(
    server: ServerProcess, connect: Connect, fields: dict[str, Any], budget: int
) -> None:
    choice = ask(connect(server), **fields)
    assert choice.token_ids.index(CLOSE) == budget
    assert len(choice.token_ids) == 40
    assert choice.message.content


def test_a_stream_under_a_budget(server: ServerProcess, connect: Connect) -> None:
    client = connect(server)
    whole = ask(client, reasoning={"max_tokens": 5})
    stream = client.chat.completions.create(
        model="thinker",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=40,
        seed=3,
        stream=True,
        extra_body={"ignore_eos": True, "reasoning": {"max_tokens": 5}},
    )
    deltas: list[Any] = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == whole.message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == whole.message.content
    kinds = [kind for kind, _ in itertools.groupby(bool(delta.content) for delta in deltas)]
    assert kinds[:2] == [False, True]


HELD: dict[str, dict[str, Any]] = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    "regex": {"guided_regex": "[1-9][0-9]"},
}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("seed", [3, 4])
def test_what_is_held_begins_behind_the_reasoning(
    server: ServerProcess, connect: Connect, held: str, seed: int
) -> None:
    """In one piece and as a stream."""
    asked: dict[str, Any] = {
        "model": "thinker",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 200,
        "seed": seed,
        "extra_body": {"thinking_token_budget": 7, **HELD[held]},
    }
    client = connect(server)
    message = client.chat.completions.create(**asked).choices[0].message
    found = json.loads(message.content)
    number = found["a"] if held == "schema" else found
    assert 0 <= number <= 99
    deltas = [c.choices[0].delta for c in client.chat.completions.create(**asked, stream=True) if c.choices]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == message.reasoning_content
    assert 0 < len(thought) <= 3 * 7
    assert "".join(delta.content or "" for delta in deltas) == message.content


def test_reasoning_that_is_off_before_what_is_held(server: ServerProcess, connect: Connect) -> None:
    answer = connect(server).chat.completions.create(
        model="thinker",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=100,
        extra_body={**HELD["schema"], "chat_template_kwargs": {"enable_thinking": False}},
    )
    assert list(json.loads(answer.choices[0].message.content)) == ["a"]
    assert not getattr(answer.choices[0].message, "reasoning_content", None)
