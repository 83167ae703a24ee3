"""/v1/responses through the official client, against a server that computes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Literal

import openai
import pydantic
import pytest
from e2e_support import MODEL

from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CALLING: Any = {
    "model": MODEL,
    "tools": [WEATHER],
    "parallel_tool_calls": False,
    "max_output_tokens": 100,
    "temperature": 0,
}


class Event(pydantic.BaseModel):
    kind: Literal["party", "meeting"]
    days: Literal[1, 2, 3]
    public: bool


@pytest.fixture
def client(cpu_server: ServerProcess, connect: Connect) -> openai.OpenAI:
    return connect(cpu_server)


def test_create_and_stream_give_the_same(client: openai.OpenAI) -> None:
    given: Any = {"model": MODEL, "input": "Say hello.", "temperature": 0, "max_output_tokens": 24}
    whole = client.responses.create(**given)
    assert whole.usage is not None
    assert whole.usage.output_tokens > 0
    with client.responses.stream(**given) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(texts) == whole.output_text
    pieces = client.responses.create(**given, stream=True)
    numbers = [event.sequence_number for event in pieces]
    assert numbers == list(range(len(numbers)))


def test_parse_gives_the_model_of_pydantic(client: openai.OpenAI) -> None:
    made = client.responses.parse(
        model=MODEL, input="A birthday on Friday.", text_format=Event, max_output_tokens=100, temperature=0
    )
    assert made.status == "completed"
    assert isinstance(made.output_parsed, Event)


def test_a_stream_is_parsed_too(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input="A talk.", text_format=Event, max_output_tokens=100, temperature=1, top_p=1
    ) as stream:
        final = stream.until_done().get_final_response()
    assert isinstance(final.output_parsed, Event)


def test_tool_loop(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "How is the weather in Paris?"}]
    first = client.responses.create(input=asked, tool_choice="required", store=False, **CALLING)
    (call, *_) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments)["city"] in ("Paris", "Oslo")
    asked += first.output
    asked.append({"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."})
    last = client.responses.create(input=asked, tool_choice="none", **CALLING)
    assert first.status == "completed"
    assert last.output[-1].type == "message"


def test_tool_loop_by_id(client: openai.OpenAI) -> None:
    first = client.responses.create(input="Weather?", tool_choice="required", **CALLING)
    calls = [item for item in first.output if item.type == "function_call"]
    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."} for call in calls
    ]
    last = client.responses.create(
        input=results, previous_response_id=first.id, tool_choice="none", **CALLING
    )
    assert last.previous_response_id == first.id
    assert last.status in ("completed", "incomplete")


def test_calls_are_streamed(client: openai.OpenAI) -> None:
    with client.responses.stream(
        input="Weather?", tool_choice={"type": "function", "name": "get_weather"}, **CALLING
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    (call, *_) = [item for item in final.output if item.type == "function_call"]
    assert "".join(deltas) == call.arguments
    assert call.name == "get_weather"


def test_a_conversation_goes_on_from_its_cache(client: openai.OpenAI) -> None:
    text = "Remember these words: " + " ".join(f"word{i}" for i in range(60))
    first = client.responses.create(model=MODEL, input=text, max_output_tokens=8, temperature=0)
    second = client.responses.create(
        model=MODEL, input="Go on.", previous_response_id=first.id, max_output_tokens=8
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 16
    items = list(client.responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in items] == ["message"] * 3
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    assert client.responses.retrieve(second.id).output_text == second.output_text


def test_asynchronous(cpu_server: ServerProcess) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{cpu_server.url}/v1", api_key="k", max_retries=0) as client:
            given: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 8}
            made = await asyncio.gather(
                *(client.responses.create(input=f"Number {i}", **given) for i in range(4))
            )
            async with client.responses.stream(input="Number 0", **given) as stream:
                texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            assert "".join(texts) == made[0].output_text
            return [one.id for one in made]

    assert len(set(asyncio.run(ask()))) == 4
