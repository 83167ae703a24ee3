"""Sessions of Anthropic's own Python client."""

from __future__ import annotations

import anthropic
import pytest
from messages_support import TOOL, turns
from taught_model import CALL, prompt

ASK = {"model": "toy", "max_tokens": 200, "messages": turns("weather?")}


def test_a_whole_session_with_a_tool(taught, client):
    api = client(taught)
    first = api.messages.create(**ASK, tools=[TOOL], tool_choice={"type": "any"})
    (use,) = first.content
    assert (first.stop_reason, use.name, use.input) == ("tool_use", "weather", {"city": "Zürich"})
    taught.text = "It is 12 °C."
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "12 °C"}
    talk = [*ASK["messages"], {"role": "assistant", "content": first.content}]
    talk.append({"role": "user", "content": [result]})
    with api.messages.stream(model="toy", max_tokens=100, messages=talk, tools=[TOOL]) as stream:
        assert "".join(stream.text_stream) == "It is 12 °C."
        last = stream.get_final_message()
    assert last.stop_reason == "end_turn"
    assert last.usage.output_tokens == len(taught.text.encode()) + 1
    assert api.messages.count_tokens(model="toy", messages=talk).input_tokens > 10


def test_a_streamed_tool_is_put_together(taught, client):
    with client(taught).messages.stream(**ASK, tools=[TOOL]) as stream:
        kinds = {event.type for event in stream}
        (use,) = stream.get_final_message().content
    assert {"input_json", "content_block_stop", "message_stop"} <= kinds
    assert use.input == {"city": "Zürich"}


def test_thinking_is_put_together_and_goes_back(taught, client):
    taught.text = "<think>\nhm\n</think>\n\nyes" + CALL
    api = client(taught)
    with api.messages.stream(**ASK, tools=[TOOL], thinking={"type": "adaptive"}) as stream:
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[0].signature
    result = {"type": "tool_result", "tool_use_id": message.content[2].id, "content": "12"}
    talk = [*ASK["messages"], message.to_param(), {"role": "user", "content": [result]}]
    assert api.beta.messages.create(model="toy", max_tokens=100, messages=talk, betas=["x"]).content


@pytest.mark.parametrize("stream", [False, True])
def test_its_tool_runner_sends_the_whole_conversation(taught, client, stream):
    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Tell it."""
        taught.text = f"It is 12 °C in {city}."
        return f"12 in {city}"

    runner = client(taught).beta.messages.tool_runner(**ASK, tools=[weather], stream=stream)
    last = runner.until_done().content[0]
    assert last.text == "It is 12 °C in Zürich."
    assert "weather?" in prompt(taught)
    assert "12 in Zürich" in prompt(taught)


def test_a_thread_of_its_own_is_told_what_is_wrong(service, client):
    thread = client(service).beta.messages.thread(model="toy", max_tokens=9)
    with pytest.raises(anthropic.BadRequestError) as caught:
        thread.send({"role": "user", "content": "hi"})
    assert caught.value.error_code == "thread_unsupported_request"


def test_errors_are_its_own(service, client):
    api = client(service)
    with pytest.raises(anthropic.NotFoundError) as caught:
        api.messages.create(**{**ASK, "model": "other"})
    assert caught.value.request_id
    with pytest.raises(anthropic.BadRequestError):
        api.messages.create(**{**ASK, "max_tokens": 0})
    assert [model.id for model in api.models.list(limit=1)] == ["toy", "alias"]
