"""The OpenAI client's features beyond text work against a server that computes: formats, tools, helpers. The
embedded model writes something like Python, and would never write any of it by itself.
"""

from __future__ import annotations

import asyncio
import enum
import json
import re
from collections.abc import Callable

import jsonschema
import openai
import pydantic
import pytest
from e2e_support import MODEL
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from openai.types.responses import (
    CustomToolParam,
    ResponseCustomToolCallOutputParam,
    ToolChoiceCustomParam,
)
from openai.types.shared_params import CustomToolInputFormat as CustomToolInputFormatParam

from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "def weather(city):"}]


class Sky(enum.Enum):
    CLEAR = "clear"
    CLOUDS = "clouds"


class Report(pydantic.BaseModel):
    sky: Sky
    degrees: int
    windy: bool


class Days(pydantic.BaseModel):
    days: list[Report] = pydantic.Field(min_length=1, max_length=2)


PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Basel"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {"name": "weather", "description": "The forecast.", "parameters": PARAMETERS, "strict": True},
}


@pytest.fixture
def client(cpu_server: ServerProcess, connect: Connect) -> openai.OpenAI:
    return connect(cpu_server)


@pytest.mark.parametrize("model", [Report, Days])
def test_parse(client: openai.OpenAI, model: type[pydantic.BaseModel]) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=USER, response_format=model, max_tokens=400, n=2, seed=1
    )
    for choice in answer.choices:
        assert isinstance(choice.message.parsed, model)
        assert choice.finish_reason == "stop"


def test_structural_tags_within_what_the_model_writes(client: openai.OpenAI) -> None:
    """It would go on otherwise behind `return`."""
    tag = {"begin": "return ", "content": {"type": "regex", "pattern": "[0-9]{2}"}, "end": ";\n"}
    form = {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": ["ret"], "tags": [tag]},
    }
    found = 0
    for seed in range(4):
        events = client.chat.completions.create(
            model=MODEL,
            messages=USER,
            max_tokens=150,
            seed=seed,
            stream=True,
            extra_body={"response_format": form},
        )
        text = "".join(event.choices[0].delta.content or "" for event in events)
        starts = [match.start() for match in re.finditer("ret", text[:-16])]
        assert all(re.match(r"return [0-9]{2};\n", text[start:]) for start in starts), text
        found += len(starts)
    assert found


def test_stream_helper_parses(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=USER, response_format=Report, max_tokens=200, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Report)


def test_json_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, response_format={"type": "json_object"}, max_tokens=200, temperature=0
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


CALL = {"begin": "<call>", "content": {"type": "json_schema", "json_schema": PARAMETERS}, "end": "</call>"}
CALLS = {"type": "triggered_tags", "triggers": ["<"], "tags": [CALL], "at_least_one": True}
CONSTRAINTS: list[tuple[dict[str, object], str]] = [
    ({"guided_choice": ["yes", "no", 'may"be\n']}, r'yes|no|may"be\n'),
    ({"guided_regex": "[a-z]{3}-[0-9]{2,4}"}, "[a-z]{3}-[0-9]{2,4}"),
    ({"structured_outputs": {"grammar": 'root ::= "x" [0-9] [0-9]? "!"'}}, "x[0-9]{1,2}!"),
    ({"structured_outputs": {"grammar": 'start: "(" /[01]{4}/ ")"'}}, r"\([01]{4}\)"),
    (
        {"response_format": {"type": "structural_tag", "format": {**CALLS, "stop_after_first": True}}},
        r'<call>\{"city": "(Bern|Basel)", "days": [1-9]\}</call>',
    ),
]


@pytest.mark.parametrize(("fields", "pattern"), CONSTRAINTS)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_other_constraints(
    client: openai.OpenAI, fields: dict[str, object], pattern: str, temperature: float
) -> None:
    chat = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=400, n=3, temperature=temperature, seed=3, extra_body=fields
    )
    text = client.completions.create(
        model=MODEL, prompt="import ", max_tokens=400, temperature=temperature, seed=3, extra_body=fields
    )
    found = [choice.message.content or "" for choice in chat.choices] + [text.choices[0].text]
    assert all(re.fullmatch(pattern, answer) for answer in found), found


def test_a_streamed_constraint_equals_the_whole_one(client: openai.OpenAI) -> None:
    fields = {"guided_json": PARAMETERS}
    whole = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=200, seed=5, extra_body=fields
    )
    stream = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=200, seed=5, stream=True, extra_body=fields
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content
    jsonschema.validate(json.loads(text), PARAMETERS)


@pytest.mark.parametrize("fields", [{"guided_regex": "("}, {"guided_grammar": "start: nothing"}])
def test_what_does_not_compile(client: openai.OpenAI, fields: dict[str, str]) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=USER, max_tokens=9, extra_body=fields)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(client: openai.OpenAI, stream: bool) -> None:
    """Call, result, answer: the model never saw a tool."""
    messages = list(USER)
    fields = {
        "model": MODEL,
        "tools": [TOOL],
        "max_tokens": 200,
        "temperature": 0,
        "parallel_tool_calls": False,
    }
    if stream:
        with client.chat.completions.stream(messages=messages, tool_choice="required", **fields) as events:
            message = events.get_final_completion().choices[0].message
    else:
        answer = client.chat.completions.create(messages=messages, tool_choice="required", **fields)
        assert answer.choices[0].finish_reason == "tool_calls"
        message = answer.choices[0].message
    assert message.content is None or message.content == ""
    (call,) = message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    messages.append(
        {"role": "assistant", "tool_calls": [call.model_dump(include={"id", "type", "function"})]}
    )
    messages.append({"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 12}'})
    last = client.chat.completions.create(messages=messages, **{**fields, "max_tokens": 8})
    assert last.choices[0].message.content


DIAL = 'start: "dial " number ("," number)?\nnumber: "+"? DIGIT~3..4\n%import common.DIGIT\n'


@pytest.mark.parametrize("stream", [False, True])
def test_a_custom_tool_in_responses(client: openai.OpenAI, stream: bool) -> None:
    format: CustomToolInputFormatParam = {"type": "grammar", "syntax": "lark", "definition": DIAL}
    tool: CustomToolParam = {"type": "custom", "name": "phone", "format": format}
    choice: ToolChoiceCustomParam = {"type": "custom", "name": "phone"}
    fields = {
        "model": MODEL,
        "input": "def call(",
        "tools": [tool],
        "tool_choice": choice,
        "temperature": 1.5,
    }
    if stream:
        events = [*client.responses.create(**fields, stream=True, max_output_tokens=200)]
        assert any(event.type == "response.custom_tool_call_input.delta" for event in events)
        assert events[-1].type == "response.completed"
        answer = events[-1].response
    else:
        answer = client.responses.create(**fields, max_output_tokens=200)
    (call,) = answer.output
    assert call.type == "custom_tool_call"
    assert re.fullmatch(r"dial \+?[0-9]{3,4}(,\+?[0-9]{3,4})?", call.input), call.input
    output: ResponseCustomToolCallOutputParam = {
        "type": "custom_tool_call_output",
        "call_id": call.call_id,
        "output": "busy",
    }
    last = client.responses.create(
        model=MODEL, previous_response_id=answer.id, input=[output], max_output_tokens=8
    )
    assert last.output_text


def test_parsed_arguments(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=USER,
        tools=[openai.pydantic_function_tool(Report)],
        tool_choice={"type": "function", "function": {"name": "Report"}},
        max_tokens=200,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Report)


def test_several_calls(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, tools=[TOOL], tool_choice="required", max_tokens=1000, temperature=0
    )
    calls = answer.choices[0].message.tool_calls or []
    assert 1 <= len(calls) <= 16
    assert len({call.id for call in calls}) == len(calls)
    if answer.choices[0].finish_reason == "tool_calls":
        for call in calls:
            assert call.type == "function"
            jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


def test_a_call_or_a_format(client: openai.OpenAI) -> None:
    """With tools and a format, the answer is one or the other."""
    answer = client.chat.completions.parse(
        model=MODEL, messages=USER, tools=[openai.pydantic_function_tool(Days)], response_format=Report,
        max_tokens=300, seed=2, n=3, parallel_tool_calls=False,
    )  # fmt: skip
    for choice in answer.choices:
        message = choice.message
        assert isinstance(message.parsed, Report) or message.tool_calls


def test_async_streams_of_different_constraints(cpu_server: ServerProcess) -> None:
    """Each sequence of a batch keeps to its own grammar."""
    patterns = ["a{1,9}b", "[xyz]{5}", "(no|yes)!", "[0-9]{8}"]

    async def one(client: openai.AsyncOpenAI, pattern: str) -> str:
        stream = await client.chat.completions.create(
            model=MODEL, messages=USER, max_tokens=60, stream=True, extra_body={"guided_regex": pattern}
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{cpu_server.url}/v1", api_key="none", max_retries=0, timeout=600
        ) as client:
            return await asyncio.gather(*(one(client, pattern) for pattern in patterns * 3))

    for pattern, text in zip(patterns * 3, asyncio.run(all_of_them()), strict=True):
        assert re.fullmatch(pattern, text)


def test_async_parse(cpu_server: ServerProcess) -> None:
    async def parse() -> Report | None:
        async with openai.AsyncOpenAI(
            base_url=f"{cpu_server.url}/v1", api_key="none", max_retries=0, timeout=600
        ) as client:
            answer = await client.chat.completions.parse(
                model=MODEL, messages=USER, response_format=Report, max_tokens=200, temperature=0
            )
            return answer.choices[0].message.parsed

    assert isinstance(asyncio.run(parse()), Report)


def test_extras(client: openai.OpenAI) -> None:
    """vLLM's fields, on one request each way."""
    answer = client.completions.create(
        model=MODEL,
        prompt="import os",
        max_tokens=8,
        temperature=0,
        extra_body={"prompt_logprobs": 2, "return_token_ids": True, "best_of": 1, "ignore_eos": True},
    )
    choice = answer.choices[0].model_dump()
    assert len(choice["token_ids"]) == 8
    assert len(choice["prompt_logprobs"]) == len(choice["prompt_token_ids"])
    again = client.completions.create(
        model=MODEL, prompt=choice["prompt_token_ids"], max_tokens=8, temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )  # fmt: skip
    assert again.choices[0].model_dump()["token_ids"] == choice["token_ids"]
    assert again.system_fingerprint == answer.system_fingerprint


def test_best_of_is_the_likeliest(client: openai.OpenAI) -> None:
    fields = {"model": MODEL, "prompt": "import ", "max_tokens": 6, "seed": 9, "logprobs": 0}
    drawn = client.completions.create(n=4, **fields).choices
    best = client.completions.create(best_of=4, **fields).choices

    def mean(choice: object) -> float:
        found = choice.logprobs.token_logprobs  # type: ignore[attr-defined]
        return sum(found) / len(found)

    assert best[0].text == max(drawn, key=mean).text
    assert len(best) == 1
