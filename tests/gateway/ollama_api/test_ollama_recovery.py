"""Answers in Ollama's form that lose their engine or wait: they go on with another one, and stay lines."""

from __future__ import annotations

import threading

import pytest
from ollama_support import DURATIONS, lines, post, user

from firelane.engine_state import LinkState
from firelane.gateway.engines.recovery.recovery import Resume

TEXT = "the quick brown fox jumps over the lazy dog"


def stable(answer):
    """Without what differs from one request to the next, and put together."""
    made = lines(answer)
    texts = "".join(piece["message"]["content"] for piece in made)
    return texts, {name: value for name, value in made[-1].items() if name not in {*DURATIONS, "created_at"}}


@pytest.mark.parametrize("format", [None, "json"])
def test_a_stream_is_the_same_over_a_death(make_service, format):
    service = make_service(recovery=Resume())
    service.text = TEXT
    service.run(setattr, service.engine, "held", True)
    box = []
    fields = {"messages": user(), "format": format}
    thread = threading.Thread(target=lambda: box.append(post(service, "/api/chat", **fields)))
    thread.start()
    service.wait_for(lambda: len(service.engine.running) == 1)
    for _ in range(5):
        service.run(service.engine.step)
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    service.run(setattr, service.engine, "held", False)
    service.call(service.restart())
    thread.join()
    assert service.link.figures.resumed == 1
    assert stable(box[0]) == stable(post(service, "/api/chat", **fields))
    assert ": waiting" not in box[0].text
