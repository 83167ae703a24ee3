"""The events of a stream, read by the official client's own accumulator."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from firelane.api.errors import envelope
from firelane.api.stored.responses import ResponseObject
from firelane.api.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from firelane.gateway.apis.responses.format import ResponsesEncoder
from firelane.gateway.requests.formats import ChoiceResult, TokenReport
from firelane.text.deltas import CallArguments, CallStart, Content, Delta, Reasoning, ToolCall

USAGE = Usage(
    prompt_tokens=7,
    completion_tokens=5,
    total_tokens=12,
    prompt_tokens_details=PromptTokensDetails(cached_tokens=4),
    completion_tokens_details=CompletionTokensDetails(reasoning_tokens=3),
)
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Names:
    """A tokenizer that names its tokens."""

    def token_bytes(self, token: int) -> bytes:
        return b"t%d" % token


class Stream:
    """A form and what it wrote."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []
        self.form = ResponsesEncoder(
            ResponseObject(id="resp_1", created_at=1, model="m", reasoning={}, text={}),
            Names(),
            lambda _, body: self.kept.append(json.loads(body)),
        )
        self.written = self.form.opening(0)

    def deltas(self, *deltas: Delta) -> Stream:
        for delta in deltas:
            self.written += self.form.delta(0, delta)
        return self

    def end(self, reason: str = "stop", text: str = "") -> Stream:
        self.written += self.form.event(ChoiceResult(0, text, [], reason), None) + self.form.closing(USAGE)
        return self

    @property
    def events(self) -> list[dict[str, Any]]:
        events = []
        for block in self.written.decode().split("\n\n")[:-1]:
            kind, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert kind == f"event: {events[-1]['type']}"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events

    @property
    def kinds(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events]


def accumulated(stream: Stream) -> Any:
    """Return the response that the official client builds from the events."""
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in stream.events:
        state.handle_event(EVENTS.validate_python(event))
    return state._completed_response


def test_a_text():
    stream = Stream().deltas(Content("he"), Content("llo")).end()
    assert stream.kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", "completed"),
    ]
    (kept,) = stream.kept
    assert kept == stream.events[-1]["response"]
    assert kept["output"][0]["content"][0]["text"] == "hello"
    assert kept["usage"]["input_tokens_details"]["cached_tokens"] == 4
    assert accumulated(stream).output_text == "hello"


def test_text_events_and_content_deltas_are_one_item():
    stream = Stream()
    stream.written += stream.form.content_chunks(0)(["a"])
    stream.deltas(Content("b"))
    stream.written += stream.form.event(ChoiceResult(0, "c", [], "stop"), None)
    stream.written += stream.form.closing(USAGE)
    assert accumulated(stream).output_text == "abc"
    assert len(stream.kept[0]["output"]) == 1


def test_reasoning_text_and_calls():
    stream = Stream().deltas(
        Reasoning("let me "),
        Reasoning("think"),
        Content("so: "),
        CallStart(0, "call_a", "f"),
        CallArguments(0, '{"x":'),
        CallArguments(0, "1}"),
        CallStart(1, "call_b", "g"),
        CallArguments(1, "{}"),
    )
    stream.end("tool_calls")
    output = stream.kept[0]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "let me think"}]
    assert [item["arguments"] for item in output[2:]] == ['{"x":1}', "{}"]
    assert {item["status"] for item in output} == {"completed"}
    assert stream.kept[0]["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    answer = accumulated(stream)
    assert [item.type for item in answer.output] == [item["type"] for item in output]
    assert answer.output[2].call_id == "call_a"


def test_an_answer_of_no_text_has_an_empty_message():
    stream = Stream().end()
    assert stream.kept[0]["output"][0]["content"][0]["text"] == ""
    assert stream.kinds[-1] == "completed"


def test_the_limit_of_tokens_leaves_it_incomplete():
    stream = Stream().deltas(Content("a")).end("length")
    assert stream.kinds[-1] == "incomplete"
    answer = stream.events[-1]["response"]
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete"
    assert answer["completed_at"] is None


def test_a_failure_ends_the_stream_and_is_not_kept():
    stream = Stream().deltas(Content("a"))
    stream.written += stream.form.failure(envelope(503, "the engine is gone"))
    assert stream.kinds[-1] == "failed"
    assert stream.events[-1]["response"]["error"] == {"code": "server_error", "message": "the engine is gone"}
    assert stream.kept == []


def report(token: int) -> TokenReport:
    return TokenReport(token, -0.5, [(token, -0.5), (9, -1.0)])


def test_logprobs_belong_to_the_message_alone():
    stream = Stream()
    write = lambda text, *tokens: stream.form.event(  # noqa: E731
        ChoiceResult(0, text, [report(token) for token in tokens]), 0
    )
    stream.written += write("", 1)  # held: nobody knows yet what it belongs to
    stream.deltas(Reasoning("hm"))
    stream.written += write("", 2)
    stream.deltas(Content("a"))
    stream.written += write("", 3) + write("b", 4)
    stream.end()
    part = stream.kept[0]["output"][1]["content"][0]
    assert part["text"] == "ab"
    assert [entry["token"] for entry in part["logprobs"]] == ["t3", "t4"]
    assert part["logprobs"][0]["top_logprobs"][1] == {"token": "t9", "logprob": -1.0, "bytes": [116, 57]}
    assert accumulated(stream).output[1].content[0].logprobs[1].token == "t4"


@pytest.mark.parametrize("logprobs", [False, True])
def test_in_one_piece(logprobs):
    stream = Stream()
    result = ChoiceResult(
        0,
        "text",
        [report(1)] if logprobs else [],
        "tool_calls",
        "why not",
        [ToolCall("call_a", "f", "{}")],
    )
    body = json.loads(stream.form.response([result], USAGE, logprobs))
    assert stream.kept == [body]
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call"]
    assert len(body["output"][1]["content"][0]["logprobs"]) == logprobs
    msgspec.convert(body, ResponseObject)


def test_calls_alone_have_no_empty_message():
    stream = Stream()
    result = ChoiceResult(0, "", [], "tool_calls", "", [ToolCall("call_a", "f", "{}")])
    body = json.loads(stream.form.response([result], USAGE, False))
    assert [item["type"] for item in body["output"]] == ["function_call"]
