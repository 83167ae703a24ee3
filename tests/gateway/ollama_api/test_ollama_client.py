"""Sessions of Ollama's own Python client."""

from __future__ import annotations

import threading

import ollama
import pytest
from ollama_support import SCHEMA, TOOL, user

TALK = user("weather?")


def test_a_whole_session_with_a_tool(taught, client):
    api = client(taught)
    first = api.chat("toy", TALK, tools=[TOOL]).message
    (call,) = first.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Zürich"})
    taught.text = "It is 12 °C."
    talk = [*TALK, first, {"role": "tool", "tool_name": "weather", "content": "12 °C"}]
    made = list(api.chat("toy", talk, tools=[TOOL], stream=True))
    assert "".join(piece.message.content for piece in made) == "It is 12 °C."
    last = made[-1]
    assert (last.done, last.done_reason) == (True, "stop")
    assert last.eval_count == len(taught.text.encode()) + 1
    assert last.eval_count / last.eval_duration > 0


def test_a_tool_may_be_a_function(taught, client):
    def weather(city: str) -> str:
        """Tell it.

        Args:
            city: where
        """
        return city

    made = client(taught).chat("toy", TALK, tools=[weather], stream=True)
    calls = [call for piece in made for call in piece.message.tool_calls or ()]
    assert [call.function.arguments for call in calls] == [{"city": "Zürich"}]


def test_texts_are_continued(service, client):
    api = client(service)
    assert api.generate("toy", "hi", system="Be brief.").response == "hello world"
    made = api.generate("toy", "hi", raw=True, options=ollama.Options(num_predict=5), stream=True)
    assert "".join(piece.response for piece in made) == "hello"
    service.text = '{"city": "B"}'
    assert api.chat("toy", TALK, format=SCHEMA, think=False).message.content == service.text
    assert api.generate("toy", keep_alive="1h").done_reason == "load"


def test_vectors(service, client):
    api = client(service)
    assert len(api.embed("toy", ["a", "b"]).embeddings) == 2
    assert len(api.embed("toy", "a", dimensions=2).embeddings[0]) == 2
    assert len(api.embeddings("toy", "a").embedding) == 4


def test_what_there_is(service, client):
    api = client(service)
    assert [model.model for model in api.list().models] == ["toy:latest", "alias:latest"]
    assert api.ps().models[0].context_length == 512
    shown = api.show("toy")
    assert shown.template.startswith("{{ bos_token }}")
    assert "completion" in shown.capabilities


def test_errors_are_its_own(service, client):
    api = client(service)
    with pytest.raises(ollama.ResponseError) as caught:
        api.chat("other", TALK)
    assert caught.value.status_code == 404
    assert "`other` does not exist" in caught.value.error
    assert api.pull("toy").status == "success"  # its files are here
    with pytest.raises(ollama.ResponseError, match="toy stays as it is"):
        api.delete("toy")
    with pytest.raises(ollama.ResponseError, match="fixed when it starts"):
        api.copy("toy", "other")
    with pytest.raises(ollama.ResponseError, match="`images` is not supported"):
        api.generate("toy", "x", images=[b"hi"])


def test_a_stream_that_fails_says_so(service, client):
    service.run(setattr, service.engine, "held", True)
    made = client(service).chat("toy", TALK, stream=True)
    thread = threading.Thread(target=step, args=(service,))
    thread.start()
    assert next(made).message.content == "h"
    thread.join()
    service.run(service.engine.die)
    with pytest.raises(ollama.ResponseError, match="engine"):
        next(made)


def step(service):
    """One, as soon as there is a request."""
    service.wait_for(lambda: len(service.engine.running) == 1)
    service.run(service.engine.step)
