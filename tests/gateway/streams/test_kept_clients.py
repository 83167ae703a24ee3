"""Official clients on streams whose events are numbered."""

from __future__ import annotations

import json

import anthropic
import openai
from streams_support import RESUME, go_on, read, steps

TEXT = "a stream that has some tokens to read"
TURNS = [{"role": "user", "content": "hi"}]


def test_openai_completions(held):
    stream = held.openai.completions.create(
        model="toy", prompt="hi", max_tokens=200, stream=True, extra_headers=RESUME
    )
    with stream:
        steps(held, 4)
        chunks = [next(iter(stream)) for _ in range(3)]
    rest = held.openai.get(
        f"/completions/{chunks[0].id}",
        cast_to=openai.types.Completion,
        stream=True,
        stream_cls=openai.Stream[openai.types.Completion],
        options={"params": {"stream": "true", "starting_after": len(chunks) - 1}},
    )
    go_on(held)
    chunks += rest
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == TEXT


def test_anthropic_messages(held):
    client = anthropic.Anthropic(
        base_url=held.url,
        api_key="k",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    )
    go_on(held)
    with client.messages.stream(model="toy", max_tokens=200, messages=TURNS, extra_headers=RESUME) as stream:
        assert "".join(stream.text_stream) == TEXT
        message = stream.get_final_message()
    assert message.stop_reason == "end_turn"
    kept = read(held, message.id, "/v1/messages", headers={"x-api-key": "k"}).content
    events = [json.loads(one.partition(b"data: ")[2]) for one in kept.split(b"\n\n")[:-1]]
    assert events[0]["message"]["id"] == message.id
    assert events[-1]["type"] == "message_stop"
    assert "".join(event.get("delta", {}).get("text", "") for event in events) == TEXT
    client.close()


def test_an_event_stream_as_browsers_read_it(service):
    """Each event is its number and its data; the number of the last is what a browser sends back."""
    answer = service.http.post(
        "/v1/chat/completions", json={"messages": TURNS, "stream": True}, headers=RESUME
    )
    last, got = "", 0
    for event in answer.text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        assert set(fields) == {"id", "data"}
        last, got = fields["id"], got + 1
    assert last == str(got - 1)
    again = service.http.get(
        f"/v1/chat/completions/{answer.headers['x-stream-id']}",
        headers={"accept": "text/event-stream", "cache-control": "no-cache", "last-event-id": last},
    )
    assert (again.status_code, again.content) == (200, b"")
